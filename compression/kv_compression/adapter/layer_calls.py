"""A model's layers called one at a time, as the model itself would call them.

The model is run as a shell: a copy of the modules on the way to its layers, with stand-ins in the layers' place and all
weights shared. Nothing on the model changes, so other threads can run it meanwhile.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kv_compression.adapter.layers import EntryCache, handed_over
from kv_compression.adapter.model import forward, sliding_windows
from kv_compression.errors import UnsupportedModelError

_TOLERANCE = 1e-3  # of the largest logit: the same kernels run on the same numbers
_CHECKED = ([0, 1], [2])  # tokens that run both ways, in two chunks

StandIn = Callable[..., Any]
"""The forward of a stand-in, from the layer's index and its arguments."""


@dataclass(frozen=True)
class LayerCall:
    """What a layer is called with beside the hidden states; `cache` stands where the sequence's cache belongs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cache: EntryCache

    def run(self, layer: nn.Module, hidden: Tensor, cache: EntryCache) -> Any:
        """What the layer returns."""
        handed_over.set(None)  # what a call that failed may have left
        args = [cache if value is self.cache else value for value in self.args]
        kwargs = {name: cache if value is self.cache else value for name, value in self.kwargs.items()}
        return layer(hidden, *args, **kwargs)


@dataclass(frozen=True)
class _Form:
    """path: of the layers' list. returned: how many values each layer returns, None for a tensor alone. kv_heads: of
    each layer."""

    path: str
    returned: tuple[int | None, ...]
    kv_heads: tuple[int, ...]


_found: WeakKeyDictionary[PreTrainedModel, _Form] = WeakKeyDictionary()


class SeparateLayers:
    """The layers of a model, made by `separate_layers`."""

    def __init__(self, model: PreTrainedModel, form: _Form) -> None:
        self.kv_heads = form.kv_heads
        self._model = model
        self._form = form
        self._layers = list(_layers_at(model, form.path))

    def enter(self, token_ids: Sequence[int], start: int) -> tuple[Tensor, list[LayerCall]]:
        """For tokens from the position `start` on: what goes into the first layer, and how every layer is called."""
        cache, entered, calls = _standing_in(self._model, start), [], []

        def pass_on(index: int, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
            entered.append(hidden)
            calls.append(LayerCall(args, kwargs, cache))
            return self._returned(index, hidden)

        forward(_shell(self._model, self._form.path, pass_on), cache, token_ids)
        if len(calls) != len(self._layers) or any(hidden is not entered[0] for hidden in entered):
            raise _unsupported(self._model)
        return entered[0], calls

    @torch.no_grad()
    def run(self, layer: int, hidden: Tensor, call: LayerCall, cache: EntryCache) -> Tensor:
        """A layer's output for its input; keys and values are appended to its part of the cache."""
        output = call.run(self._layers[layer], hidden, cache)
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result

    def leave(self, hidden: Tensor, token_id: int, position: int) -> Tensor:
        """The logits [vocab] after the last token, float32, from what the last layer gave for this token alone."""

        def give(index: int, entering: Tensor, *args: Any, **kwargs: Any) -> Any:
            return self._returned(index, hidden)

        shell = _shell(self._model, self._form.path, give)
        return forward(shell, _standing_in(self._model, position), [token_id])[0]

    def _returned(self, index: int, hidden: Tensor) -> Any:
        count = self._form.returned[index]
        return hidden if count is None else (hidden, *[None] * (count - 1))


def separate_layers(model: PreTrainedModel) -> SeparateLayers:
    """The layers of an attached model. Three tokens are run once, with the layers together and apart.

    Raises UnsupportedModelError where that does not give the same: layers hand each other more than hidden states.
    """
    if model not in _found:
        try:
            _found[model] = _find(model)
        except (IndexError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise _unsupported(model) from error
    return SeparateLayers(model, _found[model])


def _find(model: PreTrainedModel) -> _Form:
    path, returned = _path(model), []
    layers = _layers_at(model, path)

    def watched(index: int, *args: Any, **kwargs: Any) -> Any:
        output = layers[index](*args, **kwargs)
        returned.append(len(output) if isinstance(output, tuple) else None)
        return output

    cache, shell = EntryCache(sliding_windows(model.config)), _shell(model, path, watched)
    together = [forward(shell, cache, chunk)[0] for chunk in _CHECKED]
    form = _Form(path, tuple(returned[: len(layers)]), tuple(len(layer.buffer.counts) for layer in cache.layers))
    apart = _apart(SeparateLayers(model, form), EntryCache(sliding_windows(model.config)))
    for one, other in zip(together, apart, strict=True):
        if not bool((one - other).abs().max() <= _TOLERANCE * one.abs().max()):
            raise _unsupported(model)
    return form


def _apart(layers: SeparateLayers, cache: EntryCache) -> list[Tensor]:
    """The logits after every chunk that is checked."""
    found, start = [], 0
    for chunk in _CHECKED:
        hidden, calls = layers.enter(chunk, start)
        for index, call in enumerate(calls):
            hidden = layers.run(index, hidden, call, cache)
        start += len(chunk)
        found.append(layers.leave(hidden[..., -1:, :], chunk[-1], start - 1))
    return found


def _path(model: PreTrainedModel) -> str:
    """Where the only list of modules is that has the cache's layers in their order."""
    count = len(sliding_windows(model.config))
    lists = {str(name): list(module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    paths = [name for name, layers in lists.items() if [_index(layer) for layer in layers] == list(range(count))]
    if len(paths) != 1:
        raise _unsupported(model)
    return paths[0]


def _index(layer: nn.Module) -> int | None:
    """Which layer of the cache a module uses; None when it is no layer, or uses several."""
    found = {module.layer_idx for module in layer.modules() if isinstance(getattr(module, "layer_idx", None), int)}
    return int(found.pop()) if len(found) == 1 else None  # type: ignore[arg-type]


def _layers_at(model: PreTrainedModel, path: str) -> nn.ModuleList:
    layers = model.get_submodule(path)
    assert isinstance(layers, nn.ModuleList)
    return layers


def _shell(model: PreTrainedModel, path: str, stand_in: StandIn) -> PreTrainedModel:
    """The model with other forwards in place of its layers'."""
    layers = [_standing_for(layer, index, stand_in) for index, layer in enumerate(_layers_at(model, path))]
    shell = _with(model, path.split("."), nn.ModuleList(layers))
    assert isinstance(shell, PreTrainedModel)
    return shell


def _with(module: nn.Module, path: Sequence[str], replacement: nn.Module) -> nn.Module:
    """The module with another one at the path, in copies of those on the way; everything else is shared."""
    if not path:
        return replacement
    shell = copy.copy(module)
    shell._modules = {**module._modules, path[0]: _with(module.get_submodule(path[0]), path[1:], replacement)}
    return shell


def _standing_for(layer: nn.Module, index: int, stand_in: StandIn) -> nn.Module:
    """A copy, so that a model that asks its layers what they are is answered."""
    copied = copy.copy(layer)
    copied.forward = lambda *args, **kwargs: stand_in(index, *args, **kwargs)
    return copied


def _standing_in(model: PreTrainedModel, length: int) -> EntryCache:
    """A cache that says how many tokens came before, and holds none."""
    cache = EntryCache(sliding_windows(model.config))
    for layer in cache.layers:
        layer.length = length
    return cache


def _unsupported(model: PreTrainedModel) -> UnsupportedModelError:
    return UnsupportedModelError(model.config.model_type, "its layers cannot be run one at a time; use Prefill")
