"""From settings to a loaded model: the arguments of `tensorrt_llm.LLM`, and the hook in it."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from card.cache import Geometry
from card.engines.guest.drafts import check_vocabulary
from card.engines.interface import EngineError
from card.engines.tensorrt_llm.requests import check_version, installed_version
from card.engines.tensorrt_llm.runtime import Runtime, import_tensorrt_llm
from card.engines.tensorrt_llm.workers import Workers
from card.engines.vocabulary import vocabulary_size
from card.settings import ModelSettings, Role, Settings, TensorRTSettings
from card.tensorrt_llm.lookup import LookupSettings

DEFAULT_ROWS = 8
"""Rows of a target pass where `speculation.rows` is auto: every request is always padded to the
same number, so it is chosen once per deployment."""


def load_runtime(settings: Settings, role: Role, geometry: Geometry, server_pid: int) -> Runtime:
    """The model of `role` as TensorRT-LLM runs it. Raises `EngineError` saying what is missing or
    does not fit."""
    check_version(installed_version())
    if role == "draft":
        check_vocabulary(settings.draft.path, settings.target.path, "TensorRT-LLM")
    model = settings.draft if role == "draft" else settings.target
    package = import_tensorrt_llm(model.tensorrt_llm.devices)
    if role == "draft":
        arguments = draft_arguments(settings, package.llmapi)
    else:
        drafter = _drafter(settings, geometry, server_pid)
        arguments = target_arguments(settings, package.llmapi, drafter)
    return Runtime(package, arguments, Workers())


def _drafter(settings: Settings, geometry: Geometry, server_pid: int) -> object | None:
    """The hook, or None where the settings leave it no candidates."""
    if candidates_per_step(settings) < 1:
        return None
    # It subclasses a class of the runtime, so it can be imported only now.
    drafter = importlib.import_module("card.tensorrt_llm.drafter")
    lookup = LookupSettings(
        directory=settings.cache.directory,
        owner_pid=os.getpid(),
        server_pid=server_pid,
        geometry=geometry,
        vocabulary=vocabulary_size(settings.target.path),
        candidates=candidates_per_step(settings),
    )
    made: object = drafter.CandidateCacheDrafter(
        lookup, shared=settings.target.tensorrt_llm.tensor_parallel > 1
    )
    return made


def candidates_per_step(settings: Settings) -> int:
    """Candidates that every target pass verifies per request (`max_draft_len`)."""
    rows = settings.speculation.rows
    return (DEFAULT_ROWS if rows == "auto" else rows) - 1


def target_arguments(settings: Settings, trt: ModuleType, drafter: object | None) -> dict[str, Any]:
    """Of the target's `LLM`; `drafter` is our `CandidateCacheDrafter`, or None for no speculation.

    trt  the imported `tensorrt_llm.llmapi`

    Raises `EngineError`.
    """
    arguments = _common(settings, settings.target, settings.target.tensorrt_llm, trt)
    arguments["max_batch_size"] = settings.cache.slots
    # Speculation needs the committed tokens before each pass: no step may overlap the next.
    arguments["disable_overlap_scheduler"] = True
    # Pipeline parallelism does not work with a user-provided drafter.
    arguments["pipeline_parallel_size"] = 1
    rows = settings.cache.slots * (1 + candidates_per_step(settings))
    if rows > arguments["max_num_tokens"]:
        raise EngineError(
            f"cache.slots times speculation.rows is {rows} rows per pass; allowed: at most "
            f"target.tensorrt_llm.batch_tokens ({arguments['max_num_tokens']})"
        )
    if drafter is not None:
        arguments["speculative_config"] = trt.UserProvidedDecodingConfig(
            max_draft_len=candidates_per_step(settings), drafter=drafter
        )
    return arguments


def draft_arguments(settings: Settings, trt: ModuleType) -> dict[str, Any]:
    """Of the draft's `LLM`, which runs a spine and side branches for every slot."""
    config = settings.draft.tensorrt_llm
    arguments = _common(settings, settings.draft, config, trt)
    arguments["max_batch_size"] = settings.cache.slots * (1 + config.side_branches)
    return arguments


def _common(
    settings: Settings, model: ModelSettings, config: TensorRTSettings, trt: ModuleType
) -> dict[str, Any]:
    return {
        "model": str(model.path),
        # Text is made elsewhere: prompts are token ids, stop words are compared with the text.
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "dtype": model.dtype,
        "tensor_parallel_size": config.tensor_parallel,
        "gpus_per_node": len(config.devices),
        "max_seq_len": settings.limits.context_tokens,
        "max_num_tokens": config.batch_tokens,
        "enable_chunked_prefill": True,
        # The only sampler that verifies drafts; a later runtime accepts and ignores the argument.
        "sampler_type": "TorchSampler",
        "cuda_graph_config": trt.CudaGraphConfig(),
        "kv_cache_config": trt.KvCacheConfig(
            free_gpu_memory_fraction=config.kv_fraction,
            dtype=config.kv_dtype,
            enable_block_reuse=config.kv_reuse,
        ),
    }
