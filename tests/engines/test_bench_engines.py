"""Engines by thread count, and the draft's foresight."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
import torch
from real_pair import DRAFT, pair_settings
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from bench.drafts import unrelated_draft
from bench.engines import Engines
from bench.foresight import ranks_of
from bench.in_process import InProcess, parameters_of
from bench.measurement import Task
from bench.prompts import Prompt
from card.engines import SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.loading import load_engine
from card.settings import Settings, load_settings
from card.speculation.drafters.growth.frontier import noise_for, ranking_of

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


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_trained_draft_foresees_what_it_would_write_itself(temperature: float) -> None:
    """As it is served: it ranks a part of the vocabulary alone."""
    draft = load_engine(pair_settings(), "draft")
    task = Task(Prompt("own", "", tuple(range(100, 150))), temperature, seed=3, max_tokens=12)
    parameters = parameters_of(task)
    noise = noise_for(parameters, draft)
    session, text = draft.open_session(), list(task.prompt.tokens)
    for _ in range(task.max_tokens):
        missing = text[draft.length(session) :]
        ranking = ranking_of([len(text)], parameters, noise)
        logits = draft.forward([SequenceTokens(session, missing, logits=1, ranking=ranking)])[0]
        draft.commit_kv(session, range(len(missing)))
        text.append(int(logits.best()[0][0, 0]))
    written = tuple(text[len(task.prompt.tokens) :])
    ranks = ranks_of(draft, task, written)
    # A draft's rows are not independent: in a longer pass two ids that are nearly tied may turn.
    assert ranks.max() <= 1
    assert (ranks == 0).mean() > 0.7
    assert ranks_of(draft, task, (*written[:-1], 1))[-1] > 0


def test_an_unrelated_draft_has_the_shape_but_not_the_weights() -> None:
    with unrelated_draft(DRAFT) as path:
        assert json.loads((path / "config.json").read_text()) == json.loads(
            (DRAFT / "config.json").read_text()
        )
        before, after = (load_file(folder / "model.safetensors") for folder in (DRAFT, path))
    assert {n: (w.shape, w.dtype) for n, w in before.items()} == {
        n: (w.shape, w.dtype) for n, w in after.items()
    }
    matrices = [name for name, weight in before.items() if weight.dim() > 1]
    assert not any(torch.equal(before[name], after[name]) for name in matrices)
    assert not path.exists()
