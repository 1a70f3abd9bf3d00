"""Which rotary embedding each layer of a model has, found by running two tokens at two places and comparing the keys.

With causal attention and relative positions a common shift changes nothing but the turn of the keys, so whatever turns
the one keys into the others is the layer's embedding, whichever way the model writes it.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kv_compression.adapter.layers import EntryCache
from kv_compression.adapter.model import sliding_windows
from kv_compression.errors import UnsupportedModelError
from kv_compression.rotation import RotaryForm, Rotation

_SHIFT = 61
_TOLERANCE = 0.02  # of the keys' length: bfloat16 stays below it, another embedding does not

_found: WeakKeyDictionary[PreTrainedModel, Rotation] = WeakKeyDictionary()


def rotation_of(model: PreTrainedModel) -> Rotation:
    """The rotation of an attached model; found once. Raises UnsupportedModelError when a layer's is not known."""
    if model not in _found:
        _found[model] = _find(model)
    return _found[model]


def _find(model: PreTrainedModel) -> Rotation:
    tables = [buffer.float() for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    known = [RotaryForm(table, interleaved) for table in tables for interleaved in (False, True)]
    here, there = _keys(model, 0), _keys(model, _SHIFT)
    forms = []
    for layer, (before, after) in enumerate(zip(here, there, strict=True)):
        error, form = min(((_error(form, before, after), form) for form in (None, *known)), key=lambda pair: pair[0])
        if not error < _TOLERANCE:
            reason = f"layer {layer} embeds positions in a way that cannot be undone"
            raise UnsupportedModelError(model.config.model_type, reason)
        forms.append(form)
    return Rotation(tuple(forms))


@torch.no_grad()
def _keys(model: PreTrainedModel, start: int) -> list[Tensor]:
    """Of every layer the keys of two tokens at `start` [kv_heads, 2, head_dim]."""
    cache = EntryCache(sliding_windows(model.config))
    for layer in cache.layers:
        layer.length = start
    input_ids = torch.tensor([[0, 1]], device=model.device)
    model(input_ids=input_ids, position_ids=torch.tensor([[start, start + 1]], device=model.device), cache=cache)
    held = [layer.buffer.entries for layer in cache.layers]
    return [torch.stack([head.keys for head in entries]).float() for entries in held if entries is not None]


def _error(form: RotaryForm | None, before: Tensor, after: Tensor) -> float:
    if form is not None and 2 * len(form.frequencies) > before.shape[-1]:
        return torch.inf
    by = torch.full((before.shape[1],), _SHIFT, device=before.device)
    moved = before if form is None else form.turn(before, by)
    return float((moved - after).norm() / after.norm())
