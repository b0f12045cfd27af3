"""Compiles decoders for fixed numbers of rows while a decoder for any rows already serves.

Compiling six decoders takes four times as long as compiling one for any rows, but passes of that
one take 20 % longer. So the decoder for any rows serves first. The six replace it if they compute
the same bits. The costs of their passes are measured when the engine is idle.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from card.engines.calibration import (
    ConfigurableEngine,
    measure_row_costs,
    same_bits,
)
from card.engines.interface import RowCosts
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.phases import phase

log = logging.getLogger(__name__)

_LEAST_URGENT = 19
"""The system's nice value of the lowest priority."""
_IDLE_S = 0.5
"""The engine counts as idle after this time without a pass."""


class Exchange:
    """Compiles in a thread that ends with the process.

    threads_alone  threads of passes while no other model computes
    then           called with the measured costs
    known          costs from an earlier load; None: measure them
    """

    def __init__(
        self,
        engine: OpenVinoEngine,
        threads_alone: int,
        then: Callable[[RowCosts], object],
        known: RowCosts | None = None,
    ) -> None:
        self._engine = engine
        self._threads_alone = threads_alone
        self._then = then
        self._known = known
        run = partial(copy_context().run, self._run)  # keeps the load's watcher
        self._thread = threading.Thread(target=run, name="decoders", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the exchange is complete."""
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # if the system refuses, the thread is only faster
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_URGENT)
        with phase("exchange decoders", self._engine.directory):
            self._exchange()

    def _exchange(self) -> None:
        engine, began_s = self._engine, time.monotonic()
        fixed = engine.with_fixed_rows(self._threads_alone)
        if not same_bits(engine.with_same_decoders(), fixed):
            log.warning(
                "%s: decoders for fixed numbers of rows round otherwise than the one that "
                "serves, which goes on; its passes take about a fifth longer",
                engine.directory,
            )
            return
        engine.adopt(fixed)
        seconds = time.monotonic() - began_s
        log.info("%s: decoders for fixed rows are ready after %.1f s", engine.directory, seconds)
        costs = self._known or self._measured(fixed)
        engine.know_adopted_costs(costs)
        if self._known is None:
            self._then(costs)

    def _measured(self, fixed: ConfigurableEngine) -> RowCosts:
        """The costs of passes, measured while the engine is idle."""
        while True:
            passes = self._passes_when_idle()
            costs = measure_row_costs(fixed)
            if self._engine.passes_made == passes:
                return costs

    def _passes_when_idle(self) -> int:
        while True:
            passes = self._engine.passes_made
            time.sleep(_IDLE_S)
            if self._engine.passes_made == passes:
                return passes
