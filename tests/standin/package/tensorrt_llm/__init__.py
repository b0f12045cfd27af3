"""A stand-in for NVIDIA's TensorRT-LLM, for machines without a GPU.

It mirrors the documented classes of the LLM API and of the drafter interface, as far as the adapter
uses them, and behaves like them: requests are decoded in another process, batched in flight, with
the drafter's candidates verified by equality with what the target samples. The model inside is one
of this repository's engines. `docs/tensorrt_llm.md` lists the facts that it mirrors; no line of it
is NVIDIA's.

It plays 1.2.1 (see `tests/standin/installation.py`).
"""

import os
from importlib import metadata

__version__ = metadata.version("tensorrt_llm")

if not os.environ.get("CUDA_VISIBLE_DEVICES"):
    raise ImportError("stand-in: the import opens the devices, set CUDA_VISIBLE_DEVICES before it")

from tensorrt_llm import llmapi
from tensorrt_llm.llm import LLM, RequestOutput
from tensorrt_llm.llmapi import SamplingParams

__all__ = ["LLM", "RequestOutput", "SamplingParams", "__version__", "llmapi"]
