"""Buffers: what is appended is there, views stay as they were, and reserved room is used."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kv_compression.cache import LayerBuffer, LayerEntries

HEADS = 2


def _entries(first: int, counts: tuple[int, ...]) -> LayerEntries:
    heads = []
    for count in counts:
        positions = torch.arange(first, first + count, dtype=torch.int32)
        keys = positions[:, None].float().expand(-1, 4)
        heads.append(next(iter(LayerEntries.stack(keys[None], -keys[None, :, :3], positions[None]))))
    return LayerEntries.join([[head] for head in heads])


def _held(entries: LayerEntries | None) -> list[list[int]]:
    """Positions, after a check that keys and values are theirs."""
    for head in entries or ():
        assert torch.equal(head.keys, head.positions[:, None].float().expand(-1, 4))
        assert torch.equal(head.values, -head.keys[:, :3])
    return [head.positions.tolist() for head in entries or ()]


COUNT = st.integers(0, 20)
STEP = st.one_of(
    st.tuples(st.just("append"), st.tuples(COUNT, COUNT)),
    st.tuples(st.just("tokens"), COUNT),
    st.tuples(st.just("drop"), COUNT),
    st.tuples(st.just("reserve"), COUNT),
)


@given(steps=st.lists(STEP, max_size=30))
def test_a_buffer_holds_what_lists_would(steps: list[tuple[str, object]]) -> None:
    buffer, first = LayerBuffer(), 0
    expected: list[list[int]] = [[], []]
    views: list[tuple[LayerEntries, list[list[int]]]] = []
    for action, value in steps:
        if action == "append":
            views.append((buffer.append(_entries(first, value), room=3), []))
            expected = [[*head, *range(first, first + count)] for head, count in zip(expected, value, strict=True)]
        elif action == "tokens":
            new = _entries(first, (value,) * HEADS).dense()
            views.append((buffer.append_tokens(new.keys, new.values, first), []))
            expected = [[*head, *range(first, first + value)] for head in expected]
        elif action == "drop":
            buffer.drop_first(value)
            expected = [head[value:] for head in expected]
        else:
            buffer.reserve(value)
        first += 20
        if buffer.entries is not None:
            assert _held(buffer.entries) == expected
            assert buffer.counts == tuple(map(len, expected))
        if action in ("append", "tokens"):
            views[-1] = (views[-1][0], expected)
    for view, held in views:
        assert _held(view) == held


@given(counts=st.tuples(COUNT, COUNT))
def test_dense_is_for_heads_of_one_length(counts: tuple[int, int]) -> None:
    entries = _entries(0, counts)
    dense = entries.dense()
    assert (dense is None) == (counts[0] != counts[1])
    assert dense is None or dense.positions.tolist() == _held(entries)


def test_taking_and_slicing_go_head_by_head() -> None:
    entries = _entries(5, (4, 6))
    assert _held(entries.take([torch.tensor([0, 3]), torch.tensor([2])])) == [[5, 8], [7]]
    assert _held(entries.slice([1, 0], [3, 6])) == [[6, 7], [5, 6, 7, 8, 9, 10]]


def test_reserved_room_is_made_once() -> None:
    buffer = LayerBuffer()
    buffer.reserve(100)
    place = buffer.append(_entries(0, (60, 60))).keys.data_ptr()
    assert {buffer.append(_entries(at, (1, 1))).keys.data_ptr() for at in range(60, 100)} == {place}


def test_room_behind_ragged_heads_is_the_same_for_each() -> None:
    buffer = LayerBuffer()
    place = buffer.append(_entries(0, (60, 2)), room=10).keys.data_ptr()
    assert buffer.entries.keys.shape[0] == 82
    assert {buffer.append(_entries(at, (1, 1))).keys.data_ptr() for at in range(60, 70)} == {place}


def test_growing_copies_rarely() -> None:
    buffer = LayerBuffer()
    places = {buffer.append(_entries(at, (1, 1))).keys.data_ptr() for at in range(2000)}
    assert len(places) < 30


def test_bytes_are_those_of_the_entries() -> None:
    buffer = LayerBuffer()
    assert buffer.nbytes == 0
    buffer.reserve(100)
    buffer.append(_entries(0, (10, 3)))
    assert buffer.nbytes == 13 * (4 + 3 + 1) * 4
