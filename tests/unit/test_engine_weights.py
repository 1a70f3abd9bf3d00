"""Weights in half precision: nothing is lost, and what would lose something stays as it is."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from app.engine.weights import HalfLinear, can_halve, halve
from kv_compression import CriticalKV, Piece, SnapKV, attach, run_together
from tests.kv_helpers import ARCHITECTURES, empty_cache, random_tokens, run_prefill

able = pytest.mark.skipif(not can_halve(torch.device("cpu"), torch.float32), reason="torch has no such kernels here")


def in_bfloat16(model: PreTrainedModel) -> PreTrainedModel:
    """In float32, with weights as if trained in bfloat16."""
    return model.to(torch.bfloat16).float()


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([random_tokens(20)])).logits


@able
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_trained_in_bfloat16_lose_nothing(
    architecture: str, tiny_model: Callable[..., PreTrainedModel]
) -> None:
    model = in_bfloat16(tiny_model(architecture, **ARCHITECTURES[architecture]))
    expected, linear = logits(model), [name for name, module in model.named_modules() if type(module) is nn.Linear]
    halve(model)
    torch.testing.assert_close(logits(model), expected, atol=2e-5, rtol=1e-5)
    assert [name for name, module in model.named_modules() if isinstance(module, HalfLinear)] == linear
    attach(model)


@able
def test_weights_that_would_change_stay(tiny_model: Callable[..., PreTrainedModel]) -> None:
    model = tiny_model()
    halve(model)
    assert not any(isinstance(module, HalfLinear) for module in model.modules())


@able
@pytest.mark.parametrize("bias", [True, False])
def test_weights_come_out_as_they_went_in(bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 32, bias=bias).to(torch.bfloat16).float()
    halved, rows = HalfLinear(linear), torch.randn(7, 48)
    torch.testing.assert_close(halved.weight, linear.weight, atol=3e-8, rtol=0)
    assert torch.equal(halved.bias, linear.bias) if bias else halved.bias is None
    torch.testing.assert_close(halved(rows), linear(rows), atol=1e-6, rtol=1e-5)


@able
def test_a_policy_that_looks_at_weights_finds_them(tiny_model: Callable[..., PreTrainedModel]) -> None:
    """CriticalKV weighs values by what the output projection makes of them."""
    model, kept = in_bfloat16(tiny_model()), []
    for halved in (False, True):
        if halved:
            halve(model)
        cache = empty_cache(model)
        run = run_prefill(model, cache, random_tokens(60), 16, window=6)
        kept.append(cache.select(CriticalKV(SnapKV(24, window=6)), run.observation))
    for one, other in zip(*(cache.segment(0).layers for cache in kept), strict=True):
        assert torch.equal(one.positions, other.positions)


@able
def test_answers_together_are_those_alone(tiny_model: Callable[..., PreTrainedModel]) -> None:
    """The kernels sum in another order for other numbers of rows: no token changes by that."""
    model = in_bfloat16(tiny_model())
    halve(model)
    attach(model)
    prompts = [random_tokens(count) for count in (5, 30, 12, 21, 9)]
    assert answers(model, prompts) == [answers(model, [prompt])[0] for prompt in prompts]


def answers(model: PreTrainedModel, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy, of 20 tokens, all in one batch."""
    caches, pieces, found = [empty_cache(model) for _ in prompts], prompts, []
    for _ in range(20):
        of_each = run_together(model, [Piece(cache, piece) for cache, piece in zip(caches, pieces, strict=True)])
        pieces = of_each.argmax(dim=-1)[:, None].tolist()
        found.append([piece[0] for piece in pieces])
    return [list(tokens) for tokens in zip(*found, strict=True)]


def test_other_devices_and_types_are_left_alone() -> None:
    assert not can_halve(torch.device("cuda"), torch.float32)
    assert not can_halve(torch.device("cpu"), torch.bfloat16)
