"""The frame around a chunk: what comes back is what was put in, or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sessions.kv_cipher import Cipher
from app.sessions.kv_frame import CHUNK_BYTES, VALUE_BYTES, FrameError, framed_size, pack_chunk, unpack_chunk
from app.sessions.kv_head import StoredHead, StoredSegment, head_fields, parse_head, token_digest

KEYS = st.text(min_size=1, max_size=60)
PAYLOADS = st.binary(min_size=0, max_size=300)


@given(KEYS, st.integers(0, 2**32 - 1), PAYLOADS)
def test_a_chunk_comes_back(key: str, index: int, payload: bytes) -> None:
    value = pack_chunk(key, index, payload)
    assert len(value) == framed_size(len(payload))
    assert unpack_chunk(key, index, value) == payload


@given(PAYLOADS, st.data())
def test_a_flipped_bit_anywhere_is_found(payload: bytes, data: st.DataObject) -> None:
    value = bytearray(pack_chunk("key", 3, payload))
    bit = data.draw(st.integers(0, len(value) * 8 - 1))
    value[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        unpack_chunk("key", 3, bytes(value))


@given(PAYLOADS, st.data())
def test_a_chunk_cut_or_extended_is_found(payload: bytes, data: st.DataObject) -> None:
    value = pack_chunk("key", 3, payload)
    cut = data.draw(st.integers(0, len(value) - 1))
    for other in (value[:cut], value + value[:cut] + b"\0"):
        with pytest.raises(FrameError):
            unpack_chunk("key", 3, other)


@given(KEYS, KEYS, PAYLOADS)
def test_a_chunk_under_another_name_or_index_is_found(key: str, other: str, payload: bytes) -> None:
    value = pack_chunk(key, 0, payload)
    with pytest.raises(FrameError):
        unpack_chunk(key, 1, value)
    if key != other:
        with pytest.raises(FrameError):
            unpack_chunk(other, 0, value)


@given(st.binary(max_size=200))
def test_garbage_is_found(garbage: bytes) -> None:
    with pytest.raises(FrameError):
        unpack_chunk("key", 0, garbage)


@given(st.lists(st.binary(max_size=40) | st.none(), min_size=5, max_size=5))
def test_a_head_of_garbage_is_found(values: list[bytes | None]) -> None:
    with pytest.raises(FrameError):
        parse_head("prefix", values)


@given(st.integers(0, 4), st.data())
def test_a_flipped_bit_of_a_head_is_found(field: int, data: st.DataObject) -> None:
    head = StoredHead(7, "fingerprint", 42, "digest", (StoredSegment("6.ab", (100, 200)), StoredSegment("7.cd", (99,))))
    values: list[bytes | None] = [value.encode() for value in head_fields("prefix", head).values()]
    assert parse_head("prefix", values) == head
    damaged = bytearray(values[field] or b"")
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        parse_head("prefix", [*values[:field], bytes(damaged), *values[field + 1 :]])
    with pytest.raises(FrameError):
        parse_head("another prefix", values)


def test_the_largest_chunk_fills_the_largest_value() -> None:
    assert framed_size(CHUNK_BYTES, Cipher([bytes(32)])) == VALUE_BYTES == 4 * 2**20 - 64


def test_the_token_digest_is_the_same_on_every_machine() -> None:
    assert token_digest([]) == "cae66941d9efbd404e4d88758ea67670"
    assert token_digest([1, 2, 3]) != token_digest([1, 2]) != token_digest([2, 1])
