"""Rotary position embedding as a thing of its own: vectors moved to other positions after they were embedded.

Su et al., RoFormer, https://arxiv.org/abs/2104.09864: pairs of channels are turned by an angle proportional to the
position, so a turn by the difference of two positions moves a vector from one to the other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RotaryForm:
    """How one layer embeds positions. frequencies [pairs]: angles per position, in radians. The first 2 x pairs
    channels are turned; `interleaved`: channels 2i and 2i+1 are a pair, else i and i + pairs."""

    frequencies: Tensor
    interleaved: bool

    def turn(self, vectors: Tensor, by: Tensor) -> Tensor:
        """vectors [..., tokens, dim] moved by so many positions each [tokens], in float32."""
        return self._turn(vectors.float(), by.to(vectors.device, torch.float32))

    def _turn(self, vectors: Tensor, by: Tensor) -> Tensor:
        pairs = len(self.frequencies)
        angles = by[:, None] * self.frequencies.to(vectors.device)
        cos, sin = angles.cos(), angles.sin()
        turned, rest = vectors[..., : 2 * pairs], vectors[..., 2 * pairs :]
        if self.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
            moved = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        else:
            first, second = turned[..., :pairs], turned[..., pairs:]
            moved = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((moved, rest), dim=-1)

    def mean(self, dim: int, by: Tensor) -> Tensor:
        """The mean of the turns by these numbers of positions [positions], as a matrix [dim, dim] for columns."""
        angles = by.to(torch.float32)[:, None] * self.frequencies.to(by.device)
        cos, sin = angles.cos().mean(dim=0), angles.sin().mean(dim=0)
        pairs = len(cos)
        at = torch.arange(pairs, device=by.device)
        first, second = (2 * at, 2 * at + 1) if self.interleaved else (at, at + pairs)
        matrix = torch.eye(dim, device=by.device)
        matrix[first, first] = matrix[second, second] = cos
        matrix[first, second], matrix[second, first] = -sin, sin
        return matrix


@dataclass(frozen=True)
class Rotation:
    """The forms of all layers of a model; None for a layer whose vectors know no position."""

    forms: tuple[RotaryForm | None, ...]

    def turn(self, layer: int, vectors: Tensor, by: Tensor) -> Tensor:
        """Queries or keys after RoPE [..., tokens, dim], moved by so many positions each [tokens], in float32."""
        form = self.forms[layer]
        return vectors.float() if form is None else form.turn(vectors, by)

    def mean(self, layer: int, dim: int, by: Tensor) -> Tensor:
        """The mean of a layer's turns by these numbers of positions [positions], [dim, dim]."""
        form = self.forms[layer]
        return torch.eye(dim, device=by.device) if form is None else form.mean(dim, by)
