"""Running the model over new tokens: in chunks for a prompt, one by one for an answer."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.kv_cache import KVCache
from kv_compression.policies.base import Observation
from kv_compression.transformers_adapter import QueryRecorder, recording


class Prefill:
    """Appends `token_ids` to `cache`, a chunk a step, so that a caller can stop or do other work in between.

    The result does not depend on `chunk`: the observation window reaches over the borders of chunks.
    """

    def __init__(
        self, model: PreTrainedModel, cache: KVCache, token_ids: Sequence[int], *, chunk: int = 512, window: int = 32
    ) -> None:
        if not token_ids:
            raise ValueError("there is no token to prefill")
        self._model = model
        self._cache = cache
        self._pending = list(token_ids)
        self._chunk = chunk
        self._recorder = QueryRecorder(window)
        self._logits: Tensor | None = None

    def step(self) -> bool:
        """Run one chunk; True when nothing is left."""
        chunk, self._pending = self._pending[: self._chunk], self._pending[self._chunk :]
        with recording(self._recorder):
            self._logits = _forward(self._model, self._cache, chunk)
        return not self._pending

    @property
    def logits(self) -> Tensor:
        """Logits of the token after the last one [vocab], float32."""
        if self._logits is None or self._pending:
            raise RuntimeError("the prefill is not finished")
        return self._logits

    @property
    def observation(self) -> Observation:
        """The queries of the last tokens, as many as the window has or as were prefilled."""
        return Observation(self._recorder.queries, self._recorder.scaling)


def decode_step(model: PreTrainedModel, cache: KVCache, token_id: int) -> Tensor:
    """Append one token; the logits of the next [vocab], float32."""
    return _forward(model, cache, [token_id])


@torch.inference_mode()
def _forward(model: PreTrainedModel, cache: KVCache, token_ids: Sequence[int]) -> Tensor:
    input_ids = torch.tensor([token_ids], device=model.device)
    positions = torch.arange(cache.length, cache.length + len(token_ids), device=model.device)
    output = model(input_ids=input_ids, position_ids=positions[None], cache=cache, use_cache=True, logits_to_keep=1)
    logits: Tensor = output.logits[0, -1].float()
    return logits
