"""Models from disk to memory, and the fingerprint of all that makes stored KV usable."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from app.engine.pull import is_pulled
from app.engine.weights import can_halve, halve
from app.errors import ModelMissingError
from app.settings import DEFAULT_EMBEDDER, DEFAULT_MODEL, Settings
from kv_compression import FORMAT_VERSION, attach


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run. `digest` covers its weights, tokenizer, chat template, config and number format.

    `weights` is the digest of the weights alone, in whatever number format they are loaded.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context_tokens: int
    eos_token_ids: frozenset[int]
    weights: str
    digest: str

    def fingerprint(self, **parameters: str) -> str:
        """The digest together with everything else that stored KV depends on."""
        parts = {"model": self.digest, "format": FORMAT_VERSION, **parameters}
        return _digest(json.dumps(parts, sort_keys=True).encode())


def resolve_model(settings: Settings) -> str:
    """Where the language model is: the pulled folder, a local folder or a hub id. ModelMissingError."""
    return _resolve(settings, settings.model, DEFAULT_MODEL)


def resolve_embedder(settings: Settings) -> str:
    """Where the embedder is: the pulled folder, a local folder or a hub id. ModelMissingError."""
    return _resolve(settings, settings.embedder, DEFAULT_EMBEDDER)


def device_of(settings: Settings) -> str:
    """`auto` is CUDA when torch sees one, else the CPU."""
    if settings.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return settings.device


def dtype_of(settings: Settings, device: str) -> torch.dtype:
    """`auto` is bfloat16 where the device computes in it, else float32: to emulate it is many times slower."""
    if settings.dtype != "auto":
        return cast(torch.dtype, getattr(torch, settings.dtype))
    abilities = torch.cpu.get_capabilities()
    native = device != "cpu" or any(has for name, has in abilities.items() if name.endswith("bf16"))
    return torch.bfloat16 if native else torch.float32


def load_model(settings: Settings) -> LoadedModel:
    """Load the language model, its weights in half precision where that is faster and loses nothing, and attach it."""
    place = resolve_model(settings)
    device = device_of(settings)
    dtype = dtype_of(settings, device)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, device_map=device)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(place)
    weights = _weights_digest(model)
    if can_halve(model.device, dtype):
        halve(model)
    attach(model)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        context_tokens=int(model.config.get_text_config().max_position_embeddings),
        eos_token_ids=_eos_ids(model, tokenizer),
        weights=weights,
        digest=_model_digest(model, tokenizer, weights, str(dtype)),
    )


def _resolve(settings: Settings, name: str, default: str) -> str:
    if name != default:
        return name
    if not is_pulled(settings.models_dir, name):
        raise ModelMissingError(name)
    return str(settings.models_dir / name)


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    configured = model.generation_config.eos_token_id if model.generation_config else None
    ids = [configured] if isinstance(configured, int) else list(configured or [])
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


def _model_digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, weights: str, dtype: str) -> str:
    config = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    parts: Mapping[str, Any] = {
        "weights": weights,
        "tokenizer": _digest(json.dumps(sorted(tokenizer.get_vocab().items())).encode()),
        "chat_template": _digest(str(tokenizer.chat_template).encode()),
        "config": config,
        "dtype": dtype,
        "device": model.device.type,
        "transformers": transformers.__version__,
    }
    return _digest(json.dumps(parts, sort_keys=True, default=str).encode())


def _weights_digest(model: PreTrainedModel) -> str:
    """Of the weights rounded to bfloat16, wherever they came from and whatever they are loaded as."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().to(torch.bfloat16).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
