"""The pair's engines, one for each role and thread count, and a draft in a process of its own."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Literal, cast

from card.drafting import DraftLoop, make_drafters
from card.engines import Engine, EngineError
from card.engines.calibration import ConfigurableEngine, known_invariant, measure_row_costs
from card.loading import choose_engine, load_engine, load_small_draft
from card.serving.geometry import pool_geometry
from card.serving.triton.engine_process import EngineProcess
from card.settings import Settings

START_TIMEOUT_S = 120.0

Role = Literal["draft", "draft_small", "target"]


class Engines:
    """Loads a model when a number of threads is first asked for, and keeps it.

    A target that is loaded as served lends its weights to numbers that divide its threads. Raises
    `EngineError` if the settings name an engine that loads no checkpoint.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[Settings, Literal["draft", "target"]], Engine] = load_engine,
    ) -> None:
        self._settings = settings
        self._load_as_served = load
        self._loaded: dict[tuple[Role, int, bool], ConfigurableEngine] = {}
        for role, model in (("target", settings.target), ("draft", settings.draft)):
            if choose_engine(settings, model) == "tensorrt_llm":
                raise EngineError(
                    "the benchmark runs checkpoints on the processor, not tensorrt_llm; "
                    f"set {role}.engine to auto, openvino or torch"
                )

    def on(self, role: Role, threads: int, *, spreads: bool = False) -> ConfigurableEngine:
        """The engine of `role` for so many threads; `spreads`: for more while it is alone, as in
        production. Raises `EngineError`."""
        key = (role, threads, spreads)
        if getattr(self._settings, role).device != "cpu":
            key = (role, 0, False)  # threads change nothing of a device's passes
        if key not in self._loaded:
            self._loaded[key] = self._load(role, threads, spreads=spreads)
        return self._loaded[key]

    def _load(self, role: Role, threads: int, *, spreads: bool) -> ConfigurableEngine:
        served = None if spreads else self._loaded.get((role, self._settings.target.threads, True))
        alone = 0 if served is None else served.options.threads_alone
        if served is not None and alone and alone % threads == 0:
            return _on_threads(served, threads)
        changes = {"threads": threads}
        if role == "target" and not spreads:
            changes["threads_alone"] = threads
        model = getattr(self._settings, role).model_copy(update=changes)
        loads_as: Literal["draft", "target"] = "target" if role == "target" else "draft"
        engine = self._load_as_served(self._settings.model_copy(update={loads_as: model}), loads_as)
        return cast(ConfigurableEngine, engine)


def _on_threads(served: ConfigurableEngine, threads: int) -> ConfigurableEngine:
    """On so many threads with the same weights, which one system leaves in the caches for the
    next."""
    engine = known_invariant(served, replace(served.options, threads=threads, threads_alone=0))
    engine.know_costs(measure_row_costs(engine))
    return engine


def let_torch_use(threads: int) -> None:
    """Torch has one thread count for the whole process, whatever its engines were loaded with."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


@contextmanager
def draft_process(settings: Settings, key: str) -> Iterator[None]:
    """The draft engine in a process of its own, as a Triton stub would run it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_run_draft, args=(settings, os.getpid(), key, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        ours.recv()
    except EOFError:
        raise EngineError("the draft process ended while it started; see above") from None
    try:
        yield
    finally:
        ours.close()
        process.join()


def _run_draft(settings: Settings, parent: int, key: str, parents: Connection) -> None:
    # A Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # `kill -USR1` prints where a hanging process stands.
    faulthandler.register(signal.SIGUSR1)
    engine, small = load_engine(settings, "draft"), load_small_draft(settings)
    process = EngineProcess(
        "draft",
        settings.cache.directory,
        pool_geometry(settings),
        lambda pool: DraftLoop(
            make_drafters(engine, settings, small), pool, pass_ms=engine.row_costs_ms.get(1, 0.0)
        ),
        engine_timeout_s=settings.serving.engine_timeout_s,
        server_pid=parent,
    )
    process.start()
    process.attach(key, time.monotonic_ns() + int(START_TIMEOUT_S * 1e9))
    parents.send(None)
    with suppress(EOFError):  # the parent wants no more, or died
        parents.recv()
    process.stop()
