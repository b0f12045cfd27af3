"""From settings to a loaded model."""

from __future__ import annotations

import importlib
import os

from card.cache import Geometry
from card.engines.interface import EngineError
from card.engines.tensorrt_llm.runtime import Runtime, import_tensorrt_llm
from card.engines.tensorrt_llm.support import check_version, installed_version
from card.engines.tensorrt_llm.workers import Workers
from card.engines.vocabulary import shared_vocabulary, vocabulary_size
from card.settings import Role, Settings
from card.tensorrt_llm.arguments import (
    candidates_per_step,
    draft_arguments,
    target_arguments,
)
from card.tensorrt_llm.lookup import LookupSettings


def load_runtime(settings: Settings, role: Role, geometry: Geometry, server_pid: int) -> Runtime:
    """The model of `role` as TensorRT-LLM runs it. Raises `EngineError` saying what is missing or
    does not fit."""
    check_version(installed_version())
    if role == "draft":
        shared = shared_vocabulary(settings.draft.path, settings.target.path)
        if not shared.is_whole:
            raise EngineError(
                f"{settings.draft.path}: {shared.note}; TensorRT-LLM cannot leave some out: "
                "take a draft with the target's vocabulary, or draft.engine: torch"
            )
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
