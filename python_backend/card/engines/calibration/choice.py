"""The cheapest way to run an engine so that its rows are independent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from card.engines.calibration.alone import check_alone
from card.engines.calibration.interface import AnyEngine, ConfigurableEngine
from card.engines.calibration.invariance import check_row_invariance
from card.engines.options import EngineOptions


def make_row_invariant(
    engine: AnyEngine, check: Callable[[ConfigurableEngine], bool] = check_row_invariance
) -> AnyEngine:
    """The cheapest variant of the engine whose rows are independent, marked accordingly; with
    `threads_alone` if these change no bit.

    If none is, the engine comes back as it was with `row_invariant` False.
    """
    trial = engine
    for options in engine.variants:
        # Of the trial before: what that had to load anew may serve this one as well.
        trial = trial.reconfigured(
            replace(options, sessions=options.examined_sessions, kept_tokens=0)
        )
        if check(trial):
            if not check_alone(trial):
                options = replace(options, threads_alone=0)
            return known_invariant(trial, options)
    return engine


def known_invariant(engine: AnyEngine, options: EngineOptions) -> AnyEngine:
    """The engine with options that are known to make its rows independent, marked so."""
    chosen = engine.reconfigured(options)
    chosen.row_invariant = True
    return chosen
