"""From settings to an engine: which one, its buffers, the self-check and the cost curve."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Literal

from card.cores import usable_cores
from card.engines.calibration import (
    ConfigurableEngine,
    make_row_invariant,
    measure_row_costs,
)
from card.engines.interface import Engine, EngineError
from card.engines.options import EngineOptions
from card.engines.quiet import Quiet
from card.engines.remembered import Findings, FindingsMemory
from card.engines.shared_ids import SharedIds
from card.engines.vocabulary import shared_vocabulary
from card.engines.warm_up import run_largest_passes
from card.settings import ModelSettings, Settings, TargetSettings

log = logging.getLogger(__name__)

_TARGET_GRAPHS = (1, 4, 8, 16, 32, 64)
"""Rows of a target pass: one behind a query that found nothing, a chain of candidates, rows of many
sessions, and chunks of a prompt, up to the stock `serving.prefill_chunk`."""
_DRAFT_GRAPHS = (1, 4, 6, 8)
"""Rows of a draft pass: nodes by the default width and guesses, or text that was committed."""
_MOST_THREADS_ALONE = 8
"""Unless the settings ask for more: soon they wait for each other longer than they compute."""


def load_engine(settings: Settings, role: Literal["draft", "target"]) -> Engine:
    """Load the model of `role`. Raises `EngineError` saying which file does not fit and why."""
    model = settings.draft if role == "draft" else settings.target
    speculation = settings.speculation
    shared = shared_vocabulary(settings.draft.path, settings.target.path)
    is_draft = role == "draft"
    kind = choose_engine(settings, model)
    branches = speculation.branches if speculation.query == "subtree" else 1
    options = EngineOptions(
        context=settings.limits.context_tokens,
        sessions=settings.cache.slots,
        branches=0 if is_draft else branches,
        pending=settings.cache.nodes if is_draft else 0,
        dtype=model.dtype,
        weight_group=model.weight_group,
        threads=model.threads,
        threads_alone=0 if is_draft else _threads_alone(settings.target),
        device=model.device,
        graph_rows=_DRAFT_GRAPHS if is_draft else _TARGET_GRAPHS,
        paged=kind == "openvino" and branches == 1 and not is_draft,
        compressed=kind == "openvino",
    )
    memory = FindingsMemory.of_this_service(role, kind, model.path, options)
    if (known := memory.recall()) is not None:
        engine = _load(settings, model, known.applied_to(options))
        engine.row_invariant = not is_draft  # the options were found to make a target so
        if kind == "openvino":
            run_largest_passes(engine, settings.serving.prefill_chunk)
    else:
        quiet = Quiet(memory.directory)
        with quiet.loading():
            engine = _load(settings, model, options)
            with quiet.measuring():
                engine = engine if is_draft else _row_invariant(engine, model)
                if kind == "openvino":
                    run_largest_passes(engine, settings.serving.prefill_chunk)
                known = Findings.of(engine.options, measure_row_costs(engine))
        memory.remember(known)
    engine.know_costs(known.costs)
    if not is_draft or shared.is_whole:
        return engine
    log.info("%s", shared.note)
    return SharedIds(engine, shared)


def _row_invariant(engine: ConfigurableEngine, model: ModelSettings) -> ConfigurableEngine:
    """The target with options that make its rows independent. Raises `EngineError`."""
    engine = make_row_invariant(engine)
    if not engine.row_invariant:
        raise EngineError(
            f"{model.path}: on this machine rows of one pass influence each other in "
            f"{model.dtype}, so a text could depend on the draft; set target.dtype: float32"
        )
    return engine


def _threads_alone(target: TargetSettings) -> int:
    """Threads of a target pass while the draft has nothing to do; 0: as ever."""
    if target.device != "cpu":
        return 0
    cores = min(usable_cores(), _MOST_THREADS_ALONE)
    threads = target.threads_alone or cores // target.threads * target.threads
    return threads if threads > target.threads else 0


def choose_engine(settings: Settings, model: ModelSettings) -> str:
    """``auto`` is OpenVINO on a processor where it is installed, else torch."""
    wanted = settings.engine_of(model)
    if wanted != "auto":
        return wanted
    installed = importlib.util.find_spec("openvino") is not None
    return "openvino" if installed and model.device == "cpu" else "torch"


def _load(settings: Settings, model: ModelSettings, options: EngineOptions) -> ConfigurableEngine:
    directory: Path = model.path
    if choose_engine(settings, model) == "openvino":
        if importlib.util.find_spec("openvino") is None:
            raise EngineError(
                "engine: openvino is set and the package is not installed; "
                "install openvino, or set engine: auto"
            )
        from card.engines.openvino.engine import OpenVinoEngine

        return OpenVinoEngine.load(directory, options)
    if model.device != "cpu":
        from card.engines.torch.captured.engine import CapturedEngine

        return CapturedEngine.load(directory, options)
    from card.engines.torch.engine import TorchEngine

    return TorchEngine.load(directory, options)
