"""The torch engine: a lean, row-invariant decoder for the Llama family."""

import os

# oneDNN and torch each keep up to 1,024 prepared operators, one per shape and up to a MiB each:
# under mixed load a process grew by a GiB before that was full. The shapes of a single stream fit
# into these. Both are read when torch is loaded, hence before its first import.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
os.environ.setdefault("LRU_CACHE_CAPACITY", "16")
