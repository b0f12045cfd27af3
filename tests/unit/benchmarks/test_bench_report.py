"""What a report prints and stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_bench_figures import ALONE, CARD, LOOKUP, PLAIN, completion

from bench.figures import ratios, summarise
from bench.report import Report
from bench.suite import QUESTIONS

CONDITIONS = {
    "command": "./scripts/bench suite --limit 2",
    "date": "2026-01-01T10:20:30+00:00",
    "machine": {
        "processor": "a processor", "cores": 2, "memory_gib": 8.0, "system": "Linux",
        "software": "Python 3.11", "load": 0.1,
    },
    "settings": {"engine": "torch"},
    "prompts": "p.jsonl",
    "prompts_wanted": 4,
    "prompt_numbers": [0, 1],
    "max_tokens": 100,
    "engines": ["openvino", "torch"],
    "dtype": "bfloat16",
    "row_invariant": True,
    "draft_row_costs_ms": {1: 0.3},
    "target_row_costs_ms": {1: 2.0},
    "target_alone_share": 0.7,
}  # fmt: skip


def report(*, equal: bool = True) -> Report:
    completions = [
        completion(contender, str(number), speed, equal=equal, category=category)
        for contender, speed in ((ALONE, 100.0), (CARD, 200.0), (PLAIN, 80.0), (LOOKUP, 160.0))
        for number, category in enumerate(("HumanEval", "SpecBench/qa"))
    ]
    rows = summarise(completions)
    skipped = ["openvino cannot be installed: no network"]
    return Report("suite", CONDITIONS, ratios(completions, QUESTIONS), rows, rows, skipped)


def test_stored_figures_hold_everything(tmp_path: Path) -> None:
    json_file, markdown_file = report().store(tmp_path / "new" / "suite.json")
    content = json.loads(json_file.read_text())
    assert content["settings"] == {"engine": "torch"}
    assert content["prompt_numbers"] == [0, 1]
    assert [row["system"] for row in content["rows"]][:2] == ["autoregressive", "card"]
    (best,) = (
        ratio
        for ratio in content["ratios"]
        if ratio["name"] == "CARD / llama.cpp's best" and ratio["kind"] == "all"
    )
    assert best["value"] == pytest.approx(1.25)
    assert (best["to"], best["texts"]) == ("llama_cpp_prompt_lookup", 2)
    markdown = markdown_file.read_text()
    assert "2.00 (2.00–2.00)" in markdown
    assert "prompts wanted 4; max tokens 100; prompts measured 2." in markdown
    assert "openvino cannot be installed: no network" in markdown


def test_column_is_left_out_when_no_row_has_a_figure_for_it() -> None:
    markdown = report().markdown()
    assert "| first token ms |" in markdown
    assert "p99 gap ms" not in markdown


def test_texts_that_differ_are_named() -> None:
    assert "DIFFER" in report(equal=False).markdown()
    assert "DIFFER" not in report().markdown()
