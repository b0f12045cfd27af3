"""Decoders for fixed numbers of rows that are compiled while one for any rows serves already.

To compile six takes four times as long as to compile one for any rows, whose passes take a fifth
longer. So the one serves first. The six take its place if they compute the same bits. What their
passes cost is measured once the engine is idle.
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
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.phases import phase
from card.engines.row_costs import RowCosts

log = logging.getLogger(__name__)

_LEAST_URGENT = 19
"""The system's number for a thread that leaves the processor to all others."""
_IDLE_S = 0.5
"""Without a pass for so long the engine is idle."""


class Exchange:
    """Compiles in a thread that ends with the process.

    threads_alone  that passes may have while no other model computes
    then           called with the costs, once they are measured
    known          the same from a load before; None: they are to be measured
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
        run = partial(copy_context().run, self._run)  # the watcher of the load hears of this too
        self._thread = threading.Thread(target=run, name="decoders", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all is done."""
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # where the system does not let it, it is only sooner
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
        """What passes cost, measured while the engine computes nothing."""
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
