"""The only folder that touches the inside of transformers: its attention interface, its cache classes, its modules.

A model that was `attach`ed computes attention with `attention.py`. The mask is built from the shapes of the layer's own
entries, so layers and heads may hold different numbers of them. Nothing is kept on modules: what a policy wants to see
reaches its recorder through a context variable, so sessions can take turns on one model.
"""

from kv_compression.adapter.attention import recording
from kv_compression.adapter.layer_calls import LayerCall, SeparateLayers, separate_layers
from kv_compression.adapter.layers import EntryCache, EntryLayer
from kv_compression.adapter.model import attach, forward, forward_together, sliding_windows, widest_entry
from kv_compression.adapter.rotation import rotation_of

__all__ = [
    "EntryCache",
    "EntryLayer",
    "LayerCall",
    "SeparateLayers",
    "attach",
    "forward",
    "forward_together",
    "recording",
    "rotation_of",
    "separate_layers",
    "sliding_windows",
    "widest_entry",
]
