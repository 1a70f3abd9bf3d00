"""What transformers' `generate` needs of an attached model: that tokens which the cache holds are not run once more.

Plain decoding leaves them out by itself. Assisted and prompt-lookup decoding of transformers 5.24 begin with the whole
prompt whatever the cache holds, and a cache that holds all of the prompt gets it once more.
"""

from typing import Any
from weakref import WeakSet

from torch import nn
from transformers import PreTrainedModel

from kv_compression.adapter.layers import EntryCache

_prepared: WeakSet[PreTrainedModel] = WeakSet()


def prepare_generation(model: PreTrainedModel) -> None:
    """From now on, forwards on an EntryCache run only what it does not hold, if their arguments are named.

    `generate` names them. Doing it twice changes nothing.
    """
    if model not in _prepared:
        model.register_forward_pre_hook(_leave_out_held, with_kwargs=True)
        _prepared.add(model)


def _leave_out_held(
    module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments without the tokens held, None: as they are. ValueError when nothing is left or tokens lack."""
    cache, ids, positions = (named.get(name) for name in ("cache", "input_ids", "position_ids"))
    if not isinstance(cache, EntryCache) or ids is None or positions is None:
        return None
    length, tokens = cache.get_seq_length(), ids.shape[1]
    first = int(positions.flatten()[0]) if tokens else length
    held = length - first
    if held >= tokens:
        raise ValueError(f"the cache of {length} tokens holds all that is given: it must lack at least the last token")
    if held < 0:
        raise ValueError(f"the cache ends before position {length}, and the tokens given begin at {first}")
    if held == 0:
        return None
    return arguments, {**named, "input_ids": ids[:, held:], "position_ids": positions[..., held:]}
