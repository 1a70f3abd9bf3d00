"""Weights in half precision for a CPU that computes in float32: a step that decodes reads half as many bytes.

What was trained in bfloat16 fits into half precision without loss. The kernels (fbgemm's, a part of torch on x86) read
such weights and compute in float32. For the few rows of a batch that decodes they are also faster than float32's.
"""

from typing import cast

import torch
from torch import Tensor, nn

_SMALLEST = 2.0**-24  # the step of half precision next to zero
_ENGINES = ("x86", "fbgemm")


class HalfLinear(nn.Linear):
    """A linear layer that takes and gives float32. `weight` and `bias` are unpacked whenever somebody asks for them."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would make the weights that are to go
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach(), linear.bias)

    def forward(self, input: Tensor) -> Tensor:
        """[..., out_features] of [..., in_features]."""
        return cast(Tensor, torch.ops.quantized.linear_dynamic_fp16(input, self._packed))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """[out_features, in_features], float32: a copy."""
        return cast(Tensor, self._packed.unpack()[0]).float()

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """[out_features], if there is one."""
        return cast(Tensor | None, self._packed.unpack()[1])


def can_halve(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are kernels for it, and anything to gain."""
    return device.type == "cpu" and dtype == torch.float32 and torch.backends.quantized.engine in _ENGINES


def halve(model: nn.Module) -> None:
    """Replace the linear layers whose weights lose nothing in half precision. All other modules stay as they are."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and _fits(module.weight):
            model.set_submodule(name, HalfLinear(module))


def _fits(weight: Tensor) -> bool:
    """Whether nothing changes but numbers next to nothing, by half of the smallest step."""
    return bool((weight.half().float() - weight).abs().max() <= _SMALLEST / 2)
