"""What the suite prints and stores."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from test_bench_figures import ALONE, CARD, LOOKUP, PLAIN, RANKS, completion

from bench.conditions import Conditions, Machine
from bench.figures import summarise
from bench.ratios import ratios
from bench.report import Report, store
from bench.terminal import say_reservation

MACHINE = Machine("a processor", 2, 8.0, "Linux", "3.11", "2.13", "2026.4", 0.1)


def report(wanted: int = 4, *, equal: bool = True) -> Report:
    completions = [
        completion(contender, str(number), speed, equal=equal, category=category)
        for contender, speed in ((ALONE, 100.0), (CARD, 200.0), (PLAIN, 80.0), (LOOKUP, 160.0))
        for number, category in enumerate(("HumanEval", "SpecBench/qa"))
    ]
    conditions = Conditions(
        "./scripts/bench suite", "2026-01-01", MACHINE, {"engine": "torch"}, "p.jsonl", wanted,
        list(range(4)), 100, {"target": "openvino", "draft": "torch"}, "bfloat16", True,
        {1: {1: 2.0}}, {1: 0.3}, {1: 2.0}, 0.7,
    )  # fmt: skip
    rows = summarise(completions, RANKS)
    skipped = ["openvino cannot be installed: no network"]
    return Report(conditions, ratios(completions), rows, summarise(completions, {}), skipped)


def test_the_stored_figures_hold_everything(tmp_path: Path) -> None:
    json_file, markdown_file = store(report(), tmp_path / "new" / "suite.json")
    content = json.loads(json_file.read_text())
    assert content["settings"] == {"engine": "torch"}
    assert content["prompt_numbers"] == [0, 1, 2, 3]
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
    assert "openvino cannot be installed: no network" in markdown


def test_texts_that_differ_are_told() -> None:
    assert "DIFFER" in report(equal=False).markdown()
    assert "DIFFER" not in report().markdown()


@pytest.mark.parametrize(("wanted", "finished"), [(40, 5), (3, 3), (4, 4)])
def test_too_few_prompts_are_told(wanted: int, finished: int) -> None:
    found = report().conditions
    numbers = list(range(finished))
    output = StringIO()
    conditions = replace(found, prompts_wanted=wanted, prompt_numbers=numbers)
    say_reservation(Console(file=output, width=200), conditions)
    assert bool(output.getvalue()) == (finished < 4 or finished < wanted)
