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
    assert "| CARD / autoregressive | 0 | autoregressive | 2.00 (2.00–2.00) |" in markdown
    assert "| SpecBench/qa | 1 | 1.25 (1.25–1.25) | 2.00 (2.00–2.00) | 1.25" in markdown
    assert "| llama.cpp, prompt lookup | 10 tokens | peer | 0 | 2 | 160 |" in markdown
    assert "engine openvino (target), torch (draft)" in markdown
    assert "- openvino cannot be installed: no network" in markdown


def test_it_is_said_that_our_texts_are_equal_and_those_of_peers_are_others() -> None:
    assert "all our systems equal the target's own" in report().markdown()
    assert "its texts are others" in report().markdown()
    assert "**DIFFER from the target's own**" in report(equal=False).markdown()


@pytest.mark.parametrize(
    ("wanted", "finished", "said"),
    [
        (40, 5, "The time was over after 5 of the 40 prompts wanted"),
        (3, 3, "Medians over 3 prompts say little."),
        (4, 4, None),
    ],
)
def test_too_few_prompts_are_told(wanted: int, finished: int, said: str | None) -> None:
    found = report()
    numbers = list(range(finished))
    conditions = replace(found.conditions, prompts_wanted=wanted, prompt_numbers=numbers)
    markdown = replace(found, conditions=conditions).markdown()
    output = StringIO()
    say_reservation(Console(file=output, width=200), conditions)
    assert (said or "nothing") in (markdown if said else "nothing")
    assert bool(output.getvalue()) == (said is not None)
