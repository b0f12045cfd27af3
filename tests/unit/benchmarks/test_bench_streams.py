"""Many streams, a draft that knows nothing, and how far the work is."""

from __future__ import annotations

import json
import time
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bench import progress
from bench.plots import plot_streams
from bench.streams_figures import ContextCost, StreamedText, row_of
from bench.unrelated import unrelated_draft
from card.settings import load_settings


def test_latency_is_per_token_and_the_rate_that_of_all_streams() -> None:
    texts = [
        StreamedText(0.0, [(0.1, 1), (0.2, 5), (0.4, 2)]),  # gaps 100 ms for 5 tokens, 200 ms for 2
        StreamedText(0.0, [(0.3, 1), (0.5, 1)]),
    ]
    row = row_of("card", 2, texts, 2.0, True)
    assert row.tokens_per_s == pytest.approx(10 / 0.5)
    assert row.full_tokens_per_s == pytest.approx(9 / 0.4)
    assert row.p50_ms == pytest.approx(20.0)  # 20 ms five times, 100 ms twice, 200 ms once
    assert row.gap_p99_ms == pytest.approx(200.0)
    assert row.first_token_ms == pytest.approx(200.0)


def test_streams_have_a_picture(tmp_path: Path) -> None:
    rows = [row_of("card", 1, [StreamedText(0.0, [(0.1, 1), (0.2, 5)])], 2.0, True)]
    file = plot_streams(tmp_path / "streams.png", rows, [ContextCost(64, 1, 2.0)])
    assert file.stat().st_size


def test_an_unrelated_draft_has_the_shape_but_not_the_weights() -> None:
    from safetensors.torch import load_file

    own = load_settings().draft.path
    with unrelated_draft(own) as path:
        assert json.loads((path / "config.json").read_text()) == json.loads(
            (own / "config.json").read_text()
        )
        before, after = (load_file(folder / "model.safetensors") for folder in (own, path))
    assert {n: (w.shape, w.dtype) for n, w in before.items()} == {
        n: (w.shape, w.dtype) for n, w in after.items()
    }
    matrices = [name for name, weight in before.items() if weight.dim() > 1]
    assert not any(torch.equal(before[name], after[name]) for name in matrices)
    assert not path.exists()


def test_off_a_terminal_progress_is_told_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 25.0, 26.0, 27.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    output = StringIO()
    with progress.shown(Console(file=output), "texts", 4) as advance:
        for _ in range(4):
            advance()
    assert output.getvalue().splitlines() == ["texts: 2 of 4, 25 s", "texts: 4 of 4, 27 s"]
