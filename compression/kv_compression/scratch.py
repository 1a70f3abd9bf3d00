"""Memory that is used again: fresh pages cost more than the arithmetic on them."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


class Scratch:
    """Tensors under names, each as large as the largest that was asked for."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """To be written before it is read. What was taken before under this name and type is given up."""
        size = prod(shape)
        held = self._held.get((name, dtype))
        if held is None or held.numel() < size:
            held = self._held[name, dtype] = torch.empty(size, dtype=dtype)
        return held[:size].view(*shape)
