"""Decoders for fixed numbers of rows that are compiled while one for any rows serves already.

To compile six takes four times as long as to compile one for any rows, whose passes take a fifth
longer. So the one serves first. The six take its place if they compute the same bits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from card.engines.calibration import ConfigurableEngine, measure_row_costs, same_bits
from card.engines.row_costs import RowCosts

log = logging.getLogger(__name__)

_LEAST_URGENT = 19
"""The system's number for a thread that leaves the processor to all others."""


class ServingEngine(Protocol):
    """An engine whose decoders can be exchanged while it serves."""

    @property
    def directory(self) -> Path:
        """Of its model."""

    def likeness(self) -> ConfigurableEngine:
        """One with the same decoders and sessions of its own."""

    def with_fixed_rows(self) -> ConfigurableEngine:
        """One with decoders for fixed numbers of rows, in the place of `likeness`."""

    def adopt(self, costs: RowCosts) -> None:
        """Compute with the decoders of `with_fixed_rows` from the next pass on."""


def exchange_later(engine: ServingEngine, then: Callable[[RowCosts], object]) -> threading.Thread:
    """Begin to compile, in a thread that ends with the process.

    then  called with what passes cost if the exchange comes to be
    """

    def exchange() -> None:
        with contextlib.suppress(OSError):  # where the system does not let it, it is only sooner
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_URGENT)
        began_s = time.monotonic()
        fixed = engine.with_fixed_rows()
        if not same_bits(engine.likeness(), fixed):
            log.warning(
                "%s: decoders for fixed numbers of rows round otherwise than the one that "
                "serves; passes take as long as they do",
                engine.directory,
            )
            return
        costs = measure_row_costs(fixed)
        engine.adopt(costs)
        seconds = time.monotonic() - began_s
        log.info("%s: decoders for fixed rows are ready after %.1f s", engine.directory, seconds)
        then(costs)

    thread = threading.Thread(target=exchange, name="decoders", daemon=True)
    thread.start()
    return thread
