"""Compression without loss, by zstd, of numbers whose bytes lie apart: the first bytes of all, the second bytes, …

The bytes with the exponents are alike and become half as many; the others are noise, which zstd leaves as it is.
"""

from collections.abc import Iterable

import numpy as np
import zstandard

from kv_compression.errors import CodecError

_LEVEL = 1  # higher ones take several times as long and gain nothing on such bytes


def compress(pieces: Iterable[bytes | memoryview], planes: int) -> bytes:
    """The pieces, one after another, as numbers of `planes` bytes."""
    whole = np.frombuffer(b"".join(pieces), np.uint8)
    apart = np.empty_like(whole)
    for number, plane in _planes(whole, apart, planes):
        plane[...] = number
    return zstandard.ZstdCompressor(level=_LEVEL).compress(apart.data)


def expand(payload: memoryview, size: int, planes: int) -> memoryview:
    """The `size` bytes that were compressed. CodecError for anything else; takes memory for `size` bytes only."""
    try:
        if zstandard.frame_content_size(payload) != size:
            raise CodecError("a compressed chunk has another size than it says")
        content = zstandard.ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError("a compressed chunk cannot be read") from error
    apart, whole = np.frombuffer(content, np.uint8), np.empty(size, np.uint8)
    for number, plane in _planes(whole, apart, planes):
        number[...] = plane
    return whole.data


Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def _planes(whole: Bytes, apart: Bytes, planes: int) -> Iterable[tuple[Bytes, Bytes]]:
    """Which bytes of the whole are which of those that lie apart; some at the end make no number and stay there."""
    split = len(whole) // planes * planes
    yield from zip(whole[:split].reshape(-1, planes).T, apart[:split].reshape(planes, -1), strict=True)
    yield whole[split:], apart[split:]
