"""While nobody else computes a target takes more threads, if that is faster and changes no bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch

from card.engines import Logits, Rows, calibration, loading
from card.engines.architecture import read_architecture
from card.engines.calibration import is_faster_alone, make_row_invariant
from card.engines.checkpoint import Checkpoint
from card.engines.layout import Pass
from card.engines.openvino import compiled
from card.engines.openvino.engine import ArrayLogits, OpenVinoEngine
from card.engines.openvino.graph import ANY_ROWS
from card.engines.openvino.runner import Runner
from card.engines.openvino.runners import Runners
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine
from card.settings import load_settings

OPTIONS = EngineOptions(
    context=256, sessions=2, dtype="float32", threads=1, threads_alone=2, graph_rows=(1, 4, 8)
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path, "llama3")
    return tmp_path


def test_there_are_decoders_for_any_pass_and_for_few_rows(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    assert engine._compiled_alone is not None
    assert engine._compiled_alone.keys() == {ANY_ROWS, 1, 4, 8}
    threads = {
        decoder.graph.get_property("INFERENCE_NUM_THREADS")
        for decoder in engine._compiled_alone.values()
    }
    assert threads == {2}


def test_passes_alone_run_on_these_graphs(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    asked: list[Runners] = []
    original = Runners.of

    def of(runners: Runners, this: Pass) -> Runner:
        asked.append(runners)
        return original(runners, this)

    monkeypatch.setattr(Runners, "of", of)
    session, other = engine.open_session(), engine.open_session()
    for engine.alone in (False, True, False):
        for batch in ([Rows(session, [7])], [Rows(session, [7]), Rows(other, [8])]):
            engine.forward(batch)
            for rows in batch:
                engine.keep(rows.session, [])
    beside, alone = engine._runners, engine._runners_alone
    assert asked == [beside, beside, alone, alone, beside, beside]
    assert beside is not alone


def test_a_large_model_has_no_copies_for_more_threads(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = Checkpoint(checkpoint, read_architecture(checkpoint)).values
    monkeypatch.setattr(compiled, "_COPIES_BYTES", 7 * 4 * values)
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    assert engine._compiled.keys() == {ANY_ROWS, 1, 4, 8}
    assert engine._compiled_alone is None


def test_torch_computes_on_as_many_threads_as_it_may(checkpoint: Path) -> None:
    before = torch.get_num_threads()
    try:
        engine = TorchEngine.load(checkpoint, OPTIONS)
        session = engine.open_session()
        for alone, threads in ((False, 1), (True, 2), (False, 1)):
            engine.alone = alone
            engine.forward([Rows(session, [7])])
            engine.keep(session, [])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


class RoundsOtherwise(OpenVinoEngine):
    """One bit of its logits differs while it is alone."""

    def forward(self, batch: Sequence[Rows]) -> list[Logits]:
        found = super().forward(batch)
        if not (self.alone and self.options.threads_alone):
            return found
        values = [
            [np.nextafter(logits.row(at), np.float32(np.inf)) for at in range(rows.wanted)]
            for logits, rows in zip(found, batch, strict=True)
        ]
        return [ArrayLogits(np.array(rows, np.float32)) for rows in values]

    def reconfigured(self, options: EngineOptions) -> RoundsOtherwise:
        return rounding_otherwise(self, options)


def rounding_otherwise(engine: OpenVinoEngine, options: EngineOptions) -> RoundsOtherwise:
    compiled, alone = engine._compiled, engine._compiled_alone
    return RoundsOtherwise(engine.directory, engine.architecture, compiled, options, alone)


def test_threads_that_change_a_bit_are_not_used(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "is_faster_alone", lambda _: True)
    loaded = OpenVinoEngine.load(checkpoint, OPTIONS)
    good = make_row_invariant(loaded)
    assert good.row_invariant
    assert good.options.threads_alone == 2
    bad = rounding_otherwise(loaded, OPTIONS)
    chosen = make_row_invariant(bad)
    assert chosen.row_invariant
    assert chosen.options.threads_alone == 0
    assert not chosen.alone


@pytest.mark.parametrize(
    ("one_alone", "many_alone", "kept"),
    [
        (0.8, 0.7, True),
        (1.0, 0.7, True),
        (0.99, 0.98, False),
        (1.4, 0.9, False),
        (1.15, 0.7, False),
        (0.7, 1.15, False),
    ],
)
def test_threads_that_save_no_time_are_not_used(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_alone: float,
    many_alone: float,
    kept: bool,
) -> None:
    def pass_ms(engine: OpenVinoEngine, batch: list[Rows]) -> float:
        if not engine.alone:
            return 1.0
        return one_alone if len(batch) == 1 else many_alone

    monkeypatch.setattr(calibration, "_batch_ms", pass_ms)
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    assert is_faster_alone(engine) is kept
    assert not engine.alone
    assert [engine.open_session() for _ in range(OPTIONS.sessions)]
    chosen = make_row_invariant(engine)
    assert chosen.options.threads_alone == (2 if kept else 0)


@pytest.mark.parametrize(
    ("target", "cores", "threads_alone"),
    [
        ({}, 2, 2),
        ({}, 64, 8),
        ({}, 1, 0),
        ({"threads": 4}, 4, 0),
        ({"threads": 2, "threads_alone": 16}, 4, 16),
        ({"threads": 2, "threads_alone": 2}, 4, 0),
        ({"device": "cuda"}, 4, 0),
    ],
)
def test_the_threads_of_a_target_alone_follow_settings_and_cores(
    monkeypatch: pytest.MonkeyPatch, target: dict[str, Any], cores: int, threads_alone: int
) -> None:
    monkeypatch.setattr(loading, "usable_cores", lambda: cores)
    assert loading._threads_alone(load_settings(target=target).target) == threads_alone


def test_a_reconfigured_engine_lets_go_of_graphs_that_nobody_needs(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    assert engine.reconfigured(OPTIONS)._compiled_alone is engine._compiled_alone
    assert engine.reconfigured(replace(OPTIONS, threads_alone=0))._compiled_alone is None
