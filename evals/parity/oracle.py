"""What kvpress chooses. Runs in kvpress's own environment, apart from this project:

    python oracle.py CASE.json RESULT.npz

The case: `model` (a folder), `text` (token ids), `budget`, `request` and `go_on` (token ids, for KVzip) and `presses`
(name -> class and arguments). The result: for every press `scores`, as it gives them, and `kept`, both [layers,
kv_heads, tokens].
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import kvpress
import numpy as np
import torch
from kvpress.utils import compute_n_kept
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils.logging import disable_progress_bar

Found = tuple[torch.Tensor, torch.Tensor]
"""Scores [kv_heads, tokens] and whether an entry is kept, of one layer."""


class ReadableKVzip(kvpress.KVzipPress):  # type: ignore[misc]
    """KVzip that asks with the token ids it is given, and whose scores outlive it."""

    request: torch.Tensor
    go_on: torch.Tensor
    found: torch.Tensor

    def prepare(self, *args: Any, prev_postfix_size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """As in kvpress, without the end of a chat template's turn behind the request."""
        self.prefix_length = 0
        chunks = [chunk for chunk, _ in super().prepare(*args)]
        asked = [self.request] + [
            torch.cat([self.go_on, before[:, -prev_postfix_size:]], dim=1) for before in chunks[:-1]
        ]
        return [(chunk, torch.cat([ask, chunk], dim=1)) for ask, chunk in zip(asked, chunks, strict=True)]

    def compress_post(self, model: Any) -> None:
        """Called when the scores are there."""
        self.found = self.score_val[:, 0].clone()
        super().compress_post(model)


def build(arguments: dict[str, Any]) -> Any:
    """A press from its class and its arguments."""
    given = {key: build(value) if isinstance(value, dict) else value for key, value in arguments.items()}
    kind = given.pop("class")
    return ReadableKVzip(**given) if kind == "KVzipPress" else getattr(kvpress, kind)(**given)


def kept_by_score(press: Any, scores: torch.Tensor) -> torch.Tensor:
    """What a press that ranks the entries of each head keeps."""
    best = scores.topk(compute_n_kept(scores.shape[-1], press.compression_ratio), dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)


def kept_by_mask(module: Any, like: torch.Tensor) -> torch.Tensor:
    """What a press that masks entries in a module leaves."""
    _, heads, dropped = module.masked_key_indices
    kept = torch.ones_like(like, dtype=torch.bool)
    kept[heads, dropped] = False
    return kept


def in_one_prefill(model: Any, ids: torch.Tensor, presses: dict[str, Any]) -> dict[str, list[Found]]:
    """All presses that score in the prefill, each asked about the whole cache of every layer."""
    cache, found = DynamicCache(), {name: [] for name in presses}  # type: ignore[var-annotated]

    def hook(module: Any, _: Any, kwargs: Any, __: Any) -> None:
        held = cache.layers[module.layer_idx]
        for name, press in presses.items():
            given = (module, kwargs["hidden_states"], held.keys, held.values, None, kwargs)
            if isinstance(press, kvpress.ScorerPress):
                scores = press.score(*given)[0]
                found[name].append((scores, kept_by_score(press, scores)))
            else:
                press.compress(*given)
                scores = press.press.score(*given)[0]
                found[name].append((scores, kept_by_mask(module, scores)))

    for layer in model.model.layers:
        layer.self_attn.rotary_emb = model.model.rotary_emb
    hooks = [layer.self_attn.register_forward_hook(hook, with_kwargs=True) for layer in model.model.layers]
    model(ids, past_key_values=cache, logits_to_keep=1)
    for handle in hooks:
        handle.remove()
    return found


def by_reconstruction(model: Any, ids: torch.Tensor, press: Any, case: dict[str, Any]) -> list[Found]:
    """KVzip."""
    press.request, press.go_on = torch.tensor([case["request"]]), torch.tensor([case["go_on"]])
    with press(model):
        model(ids, past_key_values=DynamicCache(), logits_to_keep=1)
    modules = [layer.self_attn for layer in model.model.layers]
    return [(scores, kept_by_mask(module, scores)) for scores, module in zip(press.found, modules, strict=True)]


def set_ratios(presses: dict[str, Any], model: Any, tokens: int, budget: int) -> None:
    """Set the fraction that is removed so that just the budget stays, however a press rounds."""
    heads = model.config.num_hidden_layers * model.config.num_key_value_heads
    for press in presses.values():
        whole = isinstance(press, ReadableKVzip)  # counts over all heads, and rounds what it removes
        press.compression_ratio = (
            (heads * (tokens - budget) + 0.5) / (heads * tokens) if whole else 1 - (budget + 0.5) / tokens
        )


@torch.inference_mode()
def main() -> None:
    """Read the case, write the result."""
    logging.disable(logging.WARNING)
    disable_progress_bar()
    case = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    model = AutoModelForCausalLM.from_pretrained(case["model"], dtype=torch.float32).eval()
    presses = {name: build(arguments) for name, arguments in case["presses"].items()}
    set_ratios(presses, model, len(case["text"]), case["budget"])
    zips = {name: press for name, press in presses.items() if isinstance(press, ReadableKVzip)}
    ids = torch.tensor([case["text"]])
    found = in_one_prefill(model, ids, {name: press for name, press in presses.items() if name not in zips})
    found |= {name: by_reconstruction(model, ids, press, case) for name, press in zips.items()}
    result: dict[str, Any] = {}
    for name, layers in found.items():
        result[f"{name}/scores"] = torch.stack([scores for scores, _ in layers]).numpy()
        result[f"{name}/kept"] = torch.stack([kept for _, kept in layers]).numpy()
    np.savez(sys.argv[2], **result)


if __name__ == "__main__":
    main()
