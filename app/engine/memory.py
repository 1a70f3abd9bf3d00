"""Memory: how much a token takes, and what was freed given back to the system.

glibc keeps what is freed for the next allocation of the same thread's arena. A turn's caches are hundreds of megabytes,
so after some turns in several threads the service would hold half a gigabyte that nobody uses.
"""

import ctypes

from transformers import PreTrainedModel

ARENA_MAX = -8  # glibc's number of the parameter
ARENAS = 2


def bytes_per_token(model: PreTrainedModel) -> int:
    """Of the keys and values of all layers, none with a sliding window, and a position for every entry."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_hidden_layers * heads * (2 * dim * model.dtype.itemsize + 4))


def bound_arenas() -> None:
    """Let all threads share few arenas, so that what one frees serves the next. Call it before threads start."""
    _call("mallopt", ARENA_MAX, ARENAS)


def give_back() -> None:
    """Return the free pages of every arena to the system: some tens of milliseconds."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    """A function of the C library; another library than glibc has none of that name, and needs none."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
