"""Prefill and decoding: any chunk size, sessions that take turns, and restored sessions that go on token for token."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from kv_compression import (
    KVCache,
    Policy,
    Prefill,
    Segment,
    SnapKV,
    StreamingLLM,
    attach,
    decode_segment,
    decode_step,
    encode_segment,
)
from tests.kv_helpers import SLIDING, empty_cache, random_tokens

POLICY = SnapKV(24, window=6, kernel=5)
MODELS = [("llama", {}), ("gemma3_text", SLIDING)]


def _prefill(model: PreTrainedModel, cache: KVCache, tokens: list[int], chunk: int = 512, window: int = 6) -> Prefill:
    run = Prefill(model, cache, tokens, chunk=chunk, window=window)
    while not run.step():
        pass
    return run


def _decode(model: PreTrainedModel, cache: KVCache, logits: torch.Tensor, count: int) -> list[int]:
    answer = []
    for _ in range(count):
        answer.append(int(logits.argmax()))
        logits = decode_step(model, cache, answer[-1])
    return answer


def _positions(cache: KVCache) -> list[list[list[int]]]:
    return [[head.positions.tolist() for head in layer.buffer.entries] for layer in cache.layers]


@pytest.mark.parametrize(("model_type", "changes"), MODELS)
@pytest.mark.parametrize("chunk", [1, 5, 7, 33])
def test_the_result_does_not_depend_on_the_chunk(
    chunk: int, model_type: str, changes: dict[str, object], tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model = tiny_model(model_type, **changes)
    attach(model)
    caches = [empty_cache(model), empty_cache(model)]
    whole, chunked = (
        _prefill(model, cache, random_tokens(80), size) for cache, size in zip(caches, (80, chunk), strict=True)
    )
    torch.testing.assert_close(chunked.logits, whole.logits, atol=1e-4, rtol=0)
    for layer, seen in whole.observation.layers.items():
        torch.testing.assert_close(chunked.observation.of(layer).queries, seen.queries, atol=1e-4, rtol=0)
    selected = [cache.select(POLICY, run.observation) for cache, run in zip(caches, (whole, chunked), strict=True)]
    assert _positions(selected[0]) == _positions(selected[1])


def test_sessions_take_turns_on_one_model(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    alone = []
    for seed in (1, 2):
        cache = empty_cache(model)
        run = _prefill(model, cache, random_tokens(70, seed), 10)
        alone.append(_decode(model, cache.select(POLICY, run.observation), run.logits, 6))
    caches = [empty_cache(model), empty_cache(model)]
    runs = [
        Prefill(model, cache, random_tokens(70, seed), chunk=10, window=6)
        for cache, seed in zip(caches, (1, 2), strict=True)
    ]
    for _ in range(7):
        done = [run.step() for run in runs]
    assert done == [True, True]
    working = [cache.select(POLICY, run.observation) for cache, run in zip(caches, runs, strict=True)]
    logits, together = [run.logits for run in runs], [[], []]
    for _ in range(6):
        for at in (0, 1):
            together[at].append(int(logits[at].argmax()))
            logits[at] = decode_step(model, working[at], together[at][-1])
    assert together == alone


@pytest.mark.parametrize(("model_type", "changes"), MODELS)
@pytest.mark.parametrize("archive", ["full", "working"])
@pytest.mark.parametrize("policy", [POLICY, StreamingLLM(24)])
def test_a_restored_session_goes_on_token_for_token(
    policy: Policy,
    archive: str,
    model_type: str,
    changes: dict[str, object],
    tiny_model: Callable[..., PreTrainedModel],
) -> None:
    """Three turns; after each the session is stored as bytes and restored, or kept as it is."""
    model = tiny_model(model_type, **changes)
    attach(model)

    def converse(restored: bool) -> list[list[int]]:
        stored: list[Segment] = []
        cache, answers = empty_cache(model), []
        for turn in range(3):
            start = cache.length
            run = _prefill(model, cache, random_tokens(50 if turn == 0 else 11, turn), 16)
            working = cache.select(policy, run.observation)
            answers.append(_decode(model, working, run.logits, 5))
            if archive == "working":
                cache, stored = working, [working.segment(0)]
            else:
                stored += [cache.segment(start), working.segment(cache.length)]
                cache = KVCache.from_segments(model.config, stored, device="cpu", dtype=torch.float32)
            if restored:
                stored = [decode_segment(encode_segment(segment, "f", 4096), "f") for segment in stored]
                cache = KVCache.from_segments(model.config, stored, device="cpu", dtype=torch.float32)
        return answers

    assert converse(restored=True) == converse(restored=False)


def test_selecting_leaves_the_cache_untouched(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    cache = empty_cache(model)
    run = _prefill(model, cache, random_tokens(60))
    before = [
        tensor.clone() for layer in cache.segment(0).layers for head in layer for tensor in (head.keys, head.values)
    ]
    working = cache.select(POLICY, run.observation)
    assert (working.length, working.entries, cache.entries) == (60, 24, 60)
    assert working.nbytes * 60 == cache.nbytes * 24
    _decode(model, working, run.logits, 5)
    after = [tensor for layer in cache.segment(0).layers for head in layer for tensor in (head.keys, head.values)]
    assert cache.length == 60
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_only_the_new_piece_is_observed(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    cache = empty_cache(model)
    _prefill(model, cache, random_tokens(60))
    observation = _prefill(model, cache, random_tokens(4)).observation
    assert {seen.window for seen in observation.layers.values()} == {4}
    kept = cache.select(POLICY, observation).segment(60)
    assert {layer.counts for layer in kept.layers} == {(4, 4)}


def test_wrong_use_is_refused(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    attach(model)
    cache = empty_cache(model)
    for arguments in ({"token_ids": []}, {"token_ids": [1], "chunk": 0}, {"token_ids": [1], "window": 0}):
        with pytest.raises(ValueError, match=r"no token|at least 1"):
            Prefill(model, cache, **{"token_ids": [1], **arguments})  # type: ignore[arg-type]
    run = Prefill(model, cache, random_tokens(20), chunk=10, window=3)
    for read in (lambda: run.logits, lambda: run.observation):
        with pytest.raises(RuntimeError, match="not finished"):
            read()
    run.step()
    run.step()
    with pytest.raises(RuntimeError, match="is finished"):
        run.step()
    with pytest.raises(ValueError, match="window is 6, the prefill's was 3"):
        cache.select(POLICY, run.observation)
    decode_step(model, cache, 5)
    with pytest.raises(ValueError, match="tokens were added"):
        cache.select(StreamingLLM(8), run.observation)
