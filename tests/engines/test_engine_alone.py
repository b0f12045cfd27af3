"""While nothing else computes, a target takes more threads, if that changes no bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tiny_models
from psutil import Process

from card.cores import usable_cores
from card.engines import Logits, SequenceTokens
from card.engines.calibration import (
    known_invariant,
    make_row_invariant,
)
from card.engines.interface import ArrayLogits
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.loading import threads_alone_of
from card.settings import load_settings
from card.settings.models import automatic_threads

OPTIONS = EngineOptions(
    context=256, sessions=2, dtype="float32", threads=1, threads_alone=2, graph_rows=(1, 4, 64)
)
ENOUGH_S = 0.03
"""Of other threads that compute; those that rest have less."""


@pytest.fixture(scope="module")
def larger(larger_checkpoint: Path) -> OpenVinoEngine:
    """Its passes are long enough to take a second thread."""
    return OpenVinoEngine.load(larger_checkpoint, replace(OPTIONS, dtype="auto"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path, "llama3")
    return tmp_path


def seconds_by_thread() -> dict[int, float]:
    """Processor time that each thread of this process has had, by its id."""
    return {thread.id: thread.user_time + thread.system_time for thread in Process().threads()}


def others_work(engine: OpenVinoEngine, within: float, *, alone: bool) -> bool:
    """Whether other threads worked at all while this one computed passes for so many seconds."""
    session, before, this = engine.open_session(), seconds_by_thread(), threading.get_native_id()
    taken = {this: 0.0}
    while taken[this] < within and sum(taken.values()) - taken[this] < ENOUGH_S:
        for _ in range(10):
            engine.forward([SequenceTokens(session, [7])], alone=alone)
            engine.commit_kv(session, [])
        now = seconds_by_thread()
        taken = {thread: now[thread] - before.get(thread, 0.0) for thread in now}
    engine.close_session(session)
    return sum(taken.values()) - taken[this] >= ENOUGH_S


@pytest.mark.skipif(usable_cores() < 2, reason="a second thread needs a second core")
def test_openvino_computes_on_as_many_threads_as_it_may_and_the_others_rest(
    larger: OpenVinoEngine,
) -> None:
    for alone in (False, True, False):
        # On a busy machine they may have to wait for a core.
        assert others_work(larger, within=5.0 if alone else 1.0, alone=alone) is alone


@pytest.mark.skipif(usable_cores() < 2, reason="a second thread needs a second core")
def test_a_target_that_is_never_alone_takes_no_more_memory(larger: OpenVinoEngine) -> None:
    engine = known_invariant(larger, larger.options)
    session = engine.open_session()
    held = []
    for _ in range(2):
        for _ in range(200):
            engine.forward([SequenceTokens(session, [7])])
            engine.commit_kv(session, [])
        held.append(Process().memory_info().rss / 2**20)
    # Without a pass on all threads now and then it is 27 KiB for each pass, 5 MiB here.
    assert held[-1] - held[0] < 3


class RoundsOtherwise(OpenVinoEngine):
    """One bit of its logits differs while it is alone."""

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        found = super().forward(batch, alone=alone)
        if not (alone and self.options.threads_alone):
            return found
        values = [
            [np.nextafter(logits.row(at), np.float32(np.inf)) for at in range(rows.wanted)]
            for logits, rows in zip(found, batch, strict=True)
        ]
        return [ArrayLogits(np.array(rows, np.float32)) for rows in values]

    def reconfigured(self, options: EngineOptions) -> RoundsOtherwise:
        return rounding_otherwise(super().reconfigured(options), options)


def rounding_otherwise(engine: OpenVinoEngine, options: EngineOptions) -> RoundsOtherwise:
    return RoundsOtherwise(engine.model, options)


def test_threads_that_change_a_bit_are_not_used(checkpoint: Path) -> None:
    loaded = OpenVinoEngine.load(checkpoint, OPTIONS)
    good = make_row_invariant(loaded)
    assert good.row_invariant
    assert good.options.threads_alone == 2
    bad = rounding_otherwise(loaded, OPTIONS)
    chosen = make_row_invariant(cast(OpenVinoEngine, bad))
    assert chosen.row_invariant
    assert chosen.options.threads_alone == 0


@pytest.mark.parametrize(
    ("target", "cores", "threads", "threads_alone"),
    [
        ({}, 2, 1, 2),
        ({}, 4, 2, 4),
        ({"threads": "auto"}, 64, 4, 8),
        ({}, 1, 1, 0),
        ({"threads": 1}, 64, 1, 8),
        ({"threads": 4}, 4, 4, 0),
        ({"threads": 2, "threads_alone": 16}, 4, 2, 16),
        ({"threads_alone": 2}, 8, 2, 0),
        ({"device": "cuda"}, 4, 2, 0),
    ],
)
def test_the_threads_of_a_target_follow_settings_and_cores(
    target: dict[str, Any], cores: int, threads: int, threads_alone: int
) -> None:
    if target.get("threads", "auto") == "auto":
        assert automatic_threads(target.get("threads_alone"), cores) == threads
    found = load_settings(target=target | {"threads": threads}).target
    assert threads_alone_of(found, cores) == threads_alone
