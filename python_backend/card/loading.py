"""Loads an engine from the settings: chooses it, lays out its buffers, checks and measures it."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from card.cores import usable_cores
from card.engines.architecture import read_architecture
from card.engines.calibration import (
    ConfigurableEngine,
    make_row_invariant,
    measure_row_costs,
)
from card.engines.calibration_cache import Calibration, CalibrationCache
from card.engines.interface import Engine, EngineError, RowCosts
from card.engines.load_lock import LoadLock
from card.engines.options import Dtype, EngineOptions
from card.engines.phases import phase
from card.engines.vocabulary import SharedIds, shared_vocabulary
from card.engines.warm_up import run_largest_passes
from card.settings import ModelSettings, Role, Settings, TargetSettings

log = logging.getLogger(__name__)

_TARGET_GRAPHS = (1, 2, 4, 6, 8, 16, 32, 64)
"""Rows of a target pass: one behind a query that found nothing, a chain of candidates, rows of many
sessions, and chunks of a prompt, up to the stock `serving.prefill_chunk`. Most candidates are alone
or few: padded to four rows, one costs a fifth of a pass more."""
_DRAFT_GRAPHS = (1, 4, 6, 8, 16, 32, 64)
"""Rows of a draft pass: nodes by the default width and n-grams, or text that was committed."""
_MOST_THREADS_ALONE = 8
"""Unless the settings ask for more: soon they wait for each other longer than they compute."""


@dataclass(frozen=True)
class Examination:
    """The examination of a model at load."""

    make_row_invariant: Callable[[ConfigurableEngine], ConfigurableEngine] = make_row_invariant
    run_largest_passes: Callable[[ConfigurableEngine], object] = run_largest_passes
    measure_row_costs: Callable[[ConfigurableEngine], RowCosts] = measure_row_costs


_WHOLE = Examination()


def load_engine(
    settings: Settings,
    role: Role,
    *,
    quickly: bool = False,
    graph_rows: tuple[int, ...] | None = None,
    examination: Examination = _WHOLE,
) -> Engine:
    """Load the model of `role`. Raises `EngineError` naming the file that does not fit, and why.

    quickly     whether the engine may be slower at first, while a thread compiles
    graph_rows  numbers of rows with a decoder of their own; None: those of the role
    """
    model = settings.draft if role == "draft" else settings.target
    is_draft = role == "draft"
    if is_draft and settings.has_head:
        return _load_head(settings)
    shared = shared_vocabulary(settings.draft.path, settings.target.path) if is_draft else None
    kind = choose_engine(settings, model)
    options = EngineOptions(
        context=settings.limits.context_tokens,
        sessions=settings.cache.slots,
        kept_tokens=settings.cache.kept_tokens,
        paths=0 if is_draft else settings.speculation.paths,
        pending=settings.cache.nodes if is_draft else 0,
        dtype=_dtype(model, kind, is_draft=is_draft),
        weight_group=model.weight_group,
        threads=model.threads,
        threads_alone=0 if is_draft else threads_alone_of(settings.target),
        device=model.device,
        graph_rows=graph_rows or (_DRAFT_GRAPHS if is_draft else _TARGET_GRAPHS),
        compressed=kind == "openvino",
        taps=settings.draft.taps if settings.has_head and not is_draft else (),
    )
    memory = CalibrationCache.of_this_service(role, kind, model.path, options)
    known = memory.recall()
    if known is None:
        lock = LoadLock(memory.directory)
        engine, known = _examined(settings, model, options, lock, examination, quickly=quickly)
        memory.remember(known)
    else:
        engine = _load(settings, model, known.applied_to(options), quickly=quickly)
        engine.row_invariant = not is_draft  # the options were found to make a target so
        _warm_up(engine, settings, model, examination)
    engine.know_costs(known.costs)
    if engine.awaits_decoders:
        _exchange_decoders(engine, known, options.threads_alone, memory)
    if shared is None or shared.is_whole:
        return engine
    log.info("%s", shared.note)
    return SharedIds(engine, shared)


def _load_head(settings: Settings) -> Engine:
    """Load a draft that reads the target's hidden states. Raises `EngineError`."""
    from card.speculation.drafters.heads.loading import load_head

    draft, target = settings.draft, settings.target
    options = EngineOptions(
        context=settings.limits.context_tokens,
        sessions=settings.cache.slots,
        paths=0,
        pending=settings.cache.nodes,
        threads=draft.threads,
    )
    compiled = choose_engine(settings, draft) == "openvino"
    with phase("read", draft.path):
        head = load_head(draft.path, target.path, options, compiled=compiled)
    with phase("measure passes", draft.path), head.supposed_states():
        head.know_costs(measure_row_costs(head))
    per_token = 2 * len(settings.draft.taps) * read_architecture(target.path).hidden
    log.info(
        "%s reads the target's hidden states %s: %.1f kB a token, %.1f MB in the cache pool",
        draft.path,
        ", ".join(map(str, settings.draft.taps)),
        per_token / 1e3,
        per_token * settings.cache.state_tokens * settings.cache.slots / 1e6,
    )
    return head


def load_small_draft(settings: Settings, *, quickly: bool = False) -> Engine | None:
    """Load `draft_small` as the draft is loaded, if the drafter wants it. Raises `EngineError`."""
    if not settings.has_small_draft:
        return None
    as_draft = settings.model_copy(update={"draft": settings.draft_small})
    return load_engine(as_draft, "draft", quickly=quickly)


def _dtype(model: ModelSettings, kind: str, *, is_draft: bool) -> Dtype:
    """The dtype of a model. Reading the weights takes most of a draft's pass, and its rounding
    changes no text: in eight bits the chat pair's draft agrees as often as in sixteen."""
    return "int8" if is_draft and kind == "openvino" and model.dtype == "auto" else model.dtype


def _examined(
    settings: Settings,
    model: ModelSettings,
    options: EngineOptions,
    lock: LoadLock,
    examination: Examination,
    *,
    quickly: bool,
) -> tuple[ConfigurableEngine, Calibration]:
    """An engine, with independent rows if it is a target's, and what was measured of it."""
    with lock.loading():
        engine = _load(settings, model, options, quickly=quickly)
        if not options.grows_trees:
            engine = _row_invariant(engine, settings, model, examination, quickly=quickly)
        _warm_up(engine, settings, model, examination)
        with phase("wait for other models to load", model.path):
            lock.begin_measuring()
        with phase("measure passes", model.path):
            costs = examination.measure_row_costs(engine)
        return engine, Calibration.of(engine.options, costs, is_final=not engine.awaits_decoders)


def _warm_up(
    engine: ConfigurableEngine, settings: Settings, model: ModelSettings, examination: Examination
) -> None:
    """Take the memory of OpenVINO's largest passes; not that of decoders which will soon be
    exchanged."""
    if choose_engine(settings, model) == "openvino" and not engine.awaits_decoders:
        with phase("warm up", model.path):
            examination.run_largest_passes(engine)


def _exchange_decoders(
    engine: ConfigurableEngine, known: Calibration, threads_alone: int, memory: CalibrationCache
) -> None:
    """Replace the decoder for any rows with decoders for fixed numbers of rows."""
    from card.engines.openvino.engine import OpenVinoEngine
    from card.engines.openvino.later import Exchange

    assert isinstance(engine, OpenVinoEngine)  # no other awaits any

    def remember(costs: RowCosts) -> None:
        memory.remember(Calibration.of(engine.options, costs))

    if known.is_final:
        Exchange(engine, min(known.threads_alone, threads_alone), remember, known.costs)
    else:
        Exchange(engine, threads_alone, remember)


def _row_invariant(
    engine: ConfigurableEngine,
    settings: Settings,
    model: ModelSettings,
    examination: Examination,
    *,
    quickly: bool,
) -> ConfigurableEngine:
    """The target with options that make its rows independent; in float32, where the settings name
    no dtype and only float32 does. Raises `EngineError`."""
    with phase("check rows", model.path):
        engine = examination.make_row_invariant(engine)
    on_processor = model.device == "cpu"
    in_float32 = engine.options.dtype == "float32"
    if on_processor and model.dtype == "auto" and not (engine.row_invariant or in_float32):
        log.warning(
            "%s: in %s rows of one pass influence each other on this machine; it is loaded in "
            "float32",
            *(model.path, engine.options.dtype),
        )
        engine = _load(settings, model, replace(engine.options, dtype="float32"), quickly=quickly)
        with phase("check rows", model.path):
            engine = examination.make_row_invariant(engine)
    if not engine.row_invariant:
        raise EngineError(
            f"{model.path}: on this machine rows of one pass influence each other in "
            f"{engine.options.dtype}, so a text could depend on the draft; "
            f"set {'target.dtype: float32' if on_processor else 'target.device: cpu'}"
        )
    return engine


def threads_alone_of(target: TargetSettings, cores: int | None = None) -> int:
    """Threads of a target pass while the draft is idle; 0: the usual number."""
    if target.device != "cpu":
        return 0
    cores = min(cores or usable_cores(), _MOST_THREADS_ALONE)
    threads = target.threads_alone or cores // target.threads * target.threads
    return threads if threads > target.threads else 0


def choose_engine(settings: Settings, model: ModelSettings) -> str:
    """``auto`` is OpenVINO on a processor where it is installed, else torch. Raises `EngineError`
    if OpenVINO is set and not installed."""
    wanted = settings.engine_of(model)
    installed = importlib.util.find_spec("openvino") is not None
    if wanted == "openvino" and not installed:
        raise EngineError(
            "engine: openvino is set and the package is not installed; "
            "install openvino, or set engine: auto"
        )
    if wanted != "auto":
        return wanted
    return "openvino" if installed and model.device == "cpu" else "torch"


def _load(
    settings: Settings, model: ModelSettings, options: EngineOptions, *, quickly: bool
) -> ConfigurableEngine:
    directory: Path = model.path
    if choose_engine(settings, model) == "openvino":
        from card.engines.openvino.engine import OpenVinoEngine

        return OpenVinoEngine.load(directory, options, any_rows=quickly)
    if model.device != "cpu":
        from card.engines.torch.captured.engine import CapturedEngine

        with phase("read", directory):
            return CapturedEngine.load(directory, options)
    from card.engines.torch.engine import TorchEngine

    with phase("read", directory):
        return TorchEngine.load(directory, options)
