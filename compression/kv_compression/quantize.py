"""Numbers as small codes: rows [entries, dim] in groups, each with a scale (and a zero point) of 16 bits.

As in KIVI (https://arxiv.org/abs/2402.02750) keys are grouped per channel, over neighbouring entries, because a few
channels of keys are far larger than the others; values per token, over neighbouring channels. Integers are asymmetric:
number = zero + code * scale; 8-bit floats (e4m3) are number = code * scale.

Scale and zero are bfloat16, whose range is float32's, and rounded outwards before the codes are made: every number of a
group lies within its codes, so the error is at most half a step, and no step is 0.

The functions use few calls of torch, in place, on blocks that stay in the processor's cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kv_compression.scratch import Scratch

_TINY = 2.0**-120  # the least step: its inverse is a number, too
_FINEST = 2.0**-18  # the least step beside the zero point: finer ones would drown in the rounding of float32
_FLOAT8_MAX = 448


@dataclass(frozen=True)
class Grouping:
    """Which numbers of [rows, dim] share a scale: `size` rows of one channel, or `size` channels of one row.

    A dim that is no multiple of `size` makes one group of channels.
    """

    size: int
    per_channel: bool

    @property
    def unit(self) -> int:
        """Rows must be a multiple of it."""
        return self.size if self.per_channel else 1

    def per_unit(self, dim: int) -> int:
        """Groups in so many rows."""
        return dim if self.per_channel else dim // self._channels(dim)

    def split(self, rows: Tensor) -> Tensor:
        """[rows, dim] as three dimensions, of which `along` runs over a group."""
        count, dim = rows.shape
        shape = (-1, self.size, dim) if self.per_channel else (count, -1, self._channels(dim))
        return rows.view(shape)

    @property
    def along(self) -> int:
        """The dimension of what `split` gives that runs over a group; `per_unit` is the other one."""
        return 1 if self.per_channel else 2

    def shift(self, numbers: Tensor, factor: Tensor, start: Tensor, target: Tensor) -> None:
        """Write numbers * factor + start over `target`: all as `split` gives them, factor and start one for a group."""
        if self.per_channel:
            torch.addcmul(start, numbers, factor, out=target)
        else:  # where numbers along a row share their factor, two simple passes are faster
            torch.mul(numbers, factor, out=target).add_(start)

    def _channels(self, dim: int) -> int:
        return self.size if dim % self.size == 0 else dim


@dataclass(frozen=True)
class Integers:
    """Codes of 8 bits, or of 4: two rows to a row of bytes, the even one in the low bits."""

    bits: int
    stats = 2  # scale and zero point
    codes = torch.uint8

    def code_rows(self, rows: int) -> int:
        """Rows of codes for so many rows."""
        return rows if self.bits == 8 else -(-rows // 2)

    @torch.inference_mode()
    def encode(self, rows: Tensor, largest: float, grouping: Grouping, scratch: Scratch) -> tuple[list[Tensor], Tensor]:
        """Scale and zero, each [units, per_unit], and codes of float32 rows. ValueError as for `_limits`."""
        numbers = grouping.split(rows)
        low, high = _limits(numbers, grouping.along, largest)
        zero = _floor(low)
        scale = torch.maximum(high.sub_(zero).mul_(1 / (2**self.bits - 1)), zero.abs().mul_(_FINEST))
        factor = _ceil(scale).reciprocal()
        steps = scratch.take("steps", rows.shape, torch.float32)
        grouping.shift(numbers, factor, (zero * factor).neg_().add_(0.5), grouping.split(steps))
        stats = [stat.bfloat16().squeeze(grouping.along) for stat in (scale, zero)]
        return stats, self._pack(steps, scratch)

    @torch.inference_mode()
    def decode(
        self, stats: Sequence[Tensor], codes: Tensor, target: Tensor, grouping: Grouping, scratch: Scratch
    ) -> None:
        """Write the numbers over float32 rows."""
        if self.bits == 8:
            target.copy_(codes)
        else:
            nibbles = scratch.take("nibbles", codes.shape, torch.uint8)
            target[0::2].copy_(torch.bitwise_and(codes, 15, out=nibbles))
            target[1::2].copy_(torch.bitwise_right_shift(codes, 4, out=nibbles)[: len(target) // 2])
        scale, zero = (stat.float().unsqueeze(grouping.along) for stat in stats)
        numbers = grouping.split(target)
        grouping.shift(numbers, scale, zero, numbers)

    def _pack(self, steps: Tensor, scratch: Scratch) -> Tensor:
        """Bytes of positive numbers, their fractions cut off; by another type, since torch is slow in making these."""
        if self.bits == 8:
            return scratch.take("codes", steps.shape, torch.int16).copy_(steps).to(torch.uint8)
        count, dim = steps.shape
        codes = scratch.take("codes", (count + count % 2, dim), torch.int8)
        codes[:count].copy_(steps)
        codes[count:] = 0
        codes = codes.view(torch.uint8)
        return torch.add(codes[0::2], codes[1::2], alpha=16)


@dataclass(frozen=True)
class Floats8:
    """Codes that are floats of 8 bits, e4m3: one of sign, four of exponent, three of mantissa."""

    stats = 1  # scale
    codes = torch.uint8

    def code_rows(self, rows: int) -> int:
        """Rows of codes for so many rows."""
        return rows

    @torch.inference_mode()
    def encode(self, rows: Tensor, largest: float, grouping: Grouping, scratch: Scratch) -> tuple[list[Tensor], Tensor]:
        """Scale [units, per_unit] and codes of float32 rows. ValueError as for `_limits`."""
        numbers = grouping.split(rows)
        low, high = _limits(numbers, grouping.along, largest)
        scale = _ceil(torch.maximum(high, low.neg_(), out=high).mul_(1 / _FLOAT8_MAX))
        steps = scratch.take("steps", rows.shape, torch.float32)
        torch.mul(numbers, scale.reciprocal(), out=grouping.split(steps))
        return [scale.bfloat16().squeeze(grouping.along)], steps.to(torch.float8_e4m3fn).view(torch.uint8)

    @torch.inference_mode()
    def decode(
        self, stats: Sequence[Tensor], codes: Tensor, target: Tensor, grouping: Grouping, scratch: Scratch
    ) -> None:
        """Write the numbers over float32 rows.

        Shifted by 7, the bits of an e4m3 are those of a float16 a 256th as large: many times faster than torch's own.
        """
        short = scratch.take("codes", target.shape, torch.int16).copy_(codes.view(torch.int8))
        short.bitwise_left_shift_(7).bitwise_and_(~(1 << 14))
        target.copy_(short.view(torch.float16))
        grouping.split(target).mul_(stats[0].float().mul_(256).unsqueeze(grouping.along))


Quantizer = Integers | Floats8


def _limits(numbers: Tensor, along: int, largest: float) -> tuple[Tensor, Tensor]:
    """The least and the largest number of every group.

    ValueError for numbers that are not finite, or above a quarter of `largest`, the largest that can be restored: this
    leaves room for every difference and rounding. Not a number is both the least and the largest.
    """
    low, high = numbers.amin(along, keepdim=True), numbers.amax(along, keepdim=True)
    if not (-float(low.min()) <= largest / 4 and float(high.max()) <= largest / 4):
        raise ValueError("numbers that are not finite, or near the end of their type, cannot be quantized")
    return low, high


def _floor(numbers: Tensor) -> Tensor:
    """The next bfloat16 that is no larger, as float32."""
    bits = numbers.view(torch.int32)
    return (bits >> 31).bitwise_and_(0xFFFF).add_(bits).bitwise_and_(-0x10000).view(torch.float32)


def _ceil(steps: Tensor) -> Tensor:
    """The next bfloat16 that is no smaller than a step, and at least _TINY, as float32 and in place."""
    steps.clamp_(min=_TINY).view(torch.int32).add_(0xFFFF).bitwise_and_(-0x10000)
    return steps
