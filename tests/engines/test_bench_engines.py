"""Engines by thread count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tiny_models
from tokenizers import Tokenizer
from tokenizers.models import BPE

from bench.engines import Engines
from bench.in_process import InProcess
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.settings import Settings, load_settings

OPTIONS = EngineOptions(context=400, sessions=1, dtype="float32", threads=2, row_multiple=4)


def test_a_model_is_loaded_once_for_each_thread_count_and_once_on_a_device() -> None:
    """There passes have no threads, and two copies of a large model do not fit."""
    loaded = []

    def load(settings: Settings, role: str) -> Any:
        target = settings.target
        loaded.append((role, target.threads, target.threads_alone, settings.draft.threads))
        return object()

    pair = Engines(load_settings(target={"threads": 7}, draft={"threads": 9}), load)
    first = pair.on("target", 1)
    assert pair.on("target", 2) is not first
    assert pair.on("target", 1) is first
    assert pair.on("target", 1, spreads=True) is not first
    pair.on("draft", 2)
    targets = [("target", 1, 1, 9), ("target", 2, 2, 9), ("target", 1, None, 9)]
    assert loaded == [*targets, ("draft", 7, None, 2)]
    loaded.clear()
    pair = Engines(load_settings(target={"device": "cuda:0"}, draft={"device": "cuda:0"}), load)
    assert pair.on("target", 2, spreads=True) is pair.on("target", 1)
    assert pair.on("draft", 1) is pair.on("draft", 3)
    assert [role for role, *_ in loaded] == ["target", "draft"]


def test_a_target_that_is_loaded_as_served_serves_fewer_threads_too(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "llama3")

    def load(settings: Settings, role: str) -> OpenVinoEngine:
        threads, alone = settings.target.threads, settings.target.threads_alone or 2
        return OpenVinoEngine.load(tmp_path, replace(OPTIONS, threads=threads, threads_alone=alone))

    pair = Engines(load_settings(target={"threads": 1}), load)
    served: Any = pair.on("target", 1, spreads=True)
    on_one: Any = pair.on("target", 1)
    assert on_one.model is served.model
    assert (on_one.threads(alone=True), on_one.options.threads_alone) == (1, 0)
    assert on_one.row_invariant
    assert on_one.row_costs_ms
    on_three: Any = pair.on("target", 3)
    assert on_three.model is not served.model


def test_who_waits_has_the_rows_of_the_settings() -> None:
    """As served; a fixed number of them only grows until all candidates fit."""
    target: Any = SimpleNamespace(row_costs_ms={1: 1.0, 4: 1.1, 8: 40.0})
    adapting, fixed = (
        InProcess(settings, Tokenizer(BPE()), Engines(settings, lambda *_: target))
        for settings in (load_settings(speculation={"rows": rows}) for rows in ("auto", 3))
    )
    assert adapting.room_for(8, 1) == {"width": 1, "rows": "auto"}
    assert adapting.rows_for(8) == adapting.rows < 8
    assert [fixed.rows_for(candidates) for candidates in (1, 2, 8)] == [3, 3, 9]
    assert fixed.room_for(8, 4) == {"width": 4, "rows": 9}
