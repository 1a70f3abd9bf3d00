"""Buffers: what is appended is there, views stay as they were, and reserved room is used."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_compression.cache import LayerBuffer, LayerEntries


def _entries(first: int, count: int) -> LayerEntries:
    positions = torch.arange(first, first + count, dtype=torch.int32).expand(2, -1)
    keys = positions[..., None].float().expand(-1, -1, 4)
    return LayerEntries(keys, -keys[..., :3], positions)


def _held(buffer: LayerBuffer) -> list[int]:
    assert buffer.entries is not None
    return buffer.entries.positions[0].tolist()


@given(steps=st.lists(st.tuples(st.sampled_from(["append", "drop", "reserve"]), st.integers(0, 40)), max_size=30))
def test_a_buffer_holds_what_a_list_would(steps: list[tuple[str, int]]) -> None:
    buffer, expected, first = LayerBuffer(), [], 0
    views: list[tuple[LayerEntries, torch.Tensor]] = []
    for action, count in steps:
        if action == "append":
            view = buffer.append(_entries(first, count))
            views.append((view, view.keys.clone()))
            expected += range(first, first + count)
            first += count
        elif action == "drop":
            buffer.drop_first(count)
            expected = expected[count:]
        else:
            buffer.reserve(count)
        assert buffer.count == len(expected)
        assert buffer.entries is None or _held(buffer) == expected
    for view, keys in views:
        assert torch.equal(view.keys, keys)


def test_reserved_room_is_made_once() -> None:
    buffer = LayerBuffer()
    buffer.reserve(100)
    place = buffer.append(_entries(0, 60)).keys.data_ptr()
    assert {buffer.append(_entries(at, 1)).keys.data_ptr() for at in range(60, 100)} == {place}


def test_growing_copies_rarely() -> None:
    buffer = LayerBuffer()
    places = {buffer.append(_entries(at, 1)).keys.data_ptr() for at in range(2000)}
    assert len(places) < 30


def test_bytes_are_those_of_the_entries() -> None:
    buffer = LayerBuffer()
    assert buffer.nbytes == 0
    buffer.reserve(100)
    buffer.append(_entries(0, 10))
    assert buffer.nbytes == 2 * 10 * (4 + 3 + 1) * 4
