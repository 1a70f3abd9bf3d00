"""Running the model over new tokens: in chunks for a prompt, one by one for an answer."""

from collections.abc import Collection, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.kv_cache import KVCache
from kv_compression.observation import Observation, Observed
from kv_compression.observer import Observer
from kv_compression.together import Piece, run_together


class Prefill:
    """Appends `token_ids` to `cache`, a chunk a step, so that a caller can stop or do other work in between.

    The result does not depend on `chunk`: the observation reaches over the borders of chunks. `window` and `observe`
    are those of the policy that is to choose. With the `observer` of the prefill before, what follows in the same cache
    is observed as one with it, in place of them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: KVCache,
        token_ids: Sequence[int],
        *,
        chunk: int = 512,
        window: int = 32,
        observe: Collection[Observed] = (),
        observer: Observer | None = None,
    ) -> None:
        if window < 1:
            raise ValueError(f"the window ({window}) must be at least 1")
        self._model = model
        self._cache = cache
        self._pending = in_chunks(token_ids, chunk)
        self._length = cache.length
        self._logits: Tensor | None = None
        self.observer = Observer(model, window, observe) if observer is None else observer

    def step(self) -> bool:
        """Run one chunk; True when nothing is left. RuntimeError when that was so before."""
        return self.accept(run_together(self._model, [self.piece])[0])

    @property
    def piece(self) -> Piece:
        """The next chunk, for `run_together`; then `accept` what that gives. RuntimeError when nothing is left."""
        if not self._pending:
            raise RuntimeError("the prefill is finished")
        return Piece(self._cache, self._pending[0], self.observer)

    def accept(self, logits: Tensor) -> bool:
        """The chunk was run and gave these logits [vocab]; True when nothing is left."""
        self._pending.pop(0)
        self._logits = logits
        self._length = self._cache.length
        return not self._pending

    @property
    def logits(self) -> Tensor:
        """Logits of the token after the last one [vocab], float32."""
        if self._logits is None or self._pending:
            raise RuntimeError("the prefill is not finished")
        return self._logits

    @property
    def observation(self) -> Observation:
        """What the policies see of it: the queries of the last tokens, as many as the window has or as there were."""
        if self._pending:
            raise RuntimeError("the prefill is not finished")
        return self.observer.observation(self._length)


def in_chunks(token_ids: Sequence[int], chunk: int) -> list[list[int]]:
    """The tokens in pieces of so many, the last maybe smaller. ValueError when there are none, or pieces of none."""
    if not token_ids:
        raise ValueError("there is no token to prefill")
    if chunk < 1:
        raise ValueError(f"the chunk ({chunk}) must be at least 1")
    return [list(token_ids[first : first + chunk]) for first in range(0, len(token_ids), chunk)]


def decode_step(model: PreTrainedModel, cache: KVCache, token_id: int, observer: Observer | None = None) -> Tensor:
    """Append one token; the logits of the next [vocab], float32.

    With a prefill's `observer` the token is observed, too, so that a policy can choose again while an answer grows:
    `cache.select(policy, observer.observation(cache.length))`.
    """
    return run_together(model, [Piece(cache, [token_id], observer)])[0]
