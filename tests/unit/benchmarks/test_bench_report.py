"""From completions to rows, ratios and a report."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench.figures import Ratio, Row, interval, ratios, summarise
from bench.measurement import Measurement, Task
from bench.prompts import Prompt
from bench.report import Report
from bench.runner import Completion, Contender
from bench.suite import QUESTIONS

TOKENS = 100


def _complete(task: Task) -> Measurement:
    raise AssertionError("nothing is decoded here")


ALONE = Contender("autoregressive", "in_process", 1, complete=_complete)
CARD = Contender("card", "in_process", 4, complete=_complete)
PLAIN = Contender("llama_cpp", "peer", 1, complete=_complete)
LOOKUP = Contender("llama_cpp_prompt_lookup", "peer", 1, 10, complete=_complete)


def completion(
    contender: Contender,
    prompt: str,
    speed: float,
    *,
    equal: bool = True,
    category: str = "",
    first_token_s: float = 0.1,
    counts: dict[str, int] | None = None,
) -> Completion:
    measured = Measurement("", None, TOKENS, TOKENS / speed, first_token_s, Counter(counts or {}))
    task = Task(Prompt(prompt, prompt, (1,), category), 0.0, 0, TOKENS)
    return Completion(contender, task, measured, equal)


def speeds(contender: Contender, **by_prompt: float) -> list[Completion]:
    return [completion(contender, prompt, speed) for prompt, speed in by_prompt.items()]


def row_of(rows: list[Row], system: str) -> Row:
    (row,) = (row for row in rows if row["system"] == system)
    return row


def answer(found: list[Ratio], name: str, kind: str = "all") -> Ratio:
    (ratio,) = (ratio for ratio in found if (ratio.name, ratio.kind) == (name, kind))
    return ratio


def test_only_our_lossless_texts_must_be_equal() -> None:
    rows = summarise(
        [
            *speeds(ALONE, a=100, b=100),
            completion(CARD, "a", 300),
            completion(CARD, "b", 300, equal=False),
            completion(PLAIN, "a", 90, equal=False),
        ]
    )
    found = {row["system"]: row.get("texts_equal") for row in rows}
    assert found == {"autoregressive": True, "card": False, "llama_cpp": None}


def test_shares_are_of_all_texts_together() -> None:
    counts = {
        "steps": 10, "accepted": 90, "drafted": 120, "queries": 9, "hits": 6,
        "draft_waiting_ns": 500_000_000,
        "draft_busy_ns": 1_400_000_000, "draft_passes": 2_000,
        "later_steps": 8, "query_ns": 4_000_000, "forward_ns": 80_000_000, "verify_ns": 8_000_000,
    }  # fmt: skip
    card = completion(CARD, "a", 50, first_token_s=0.4, counts=counts)
    row = row_of(summarise([*speeds(ALONE, a=100), card]), "card")
    assert row["tokens_per_step"] == 10.0
    assert row["hit_rate"] == pytest.approx(2 / 3)
    assert row["draft_idle_share"] == pytest.approx(0.25)
    assert row["draft_ms_per_pass"] == pytest.approx(0.7)
    assert row["time_to_first_token_ms"] == pytest.approx(400)
    assert (row["query_ms"], row["forward_ms"], row["verify_ms"]) == (0.5, 10.0, 1.0)
    assert row["ms_per_step"] == pytest.approx(200)  # 1.6 s after the first token, 8 steps


def test_ratio_is_the_geometric_mean_of_what_each_text_gained() -> None:
    found = ratios([*speeds(ALONE, a=100, b=10), *speeds(CARD, a=200, b=80)], QUESTIONS)
    ratio = answer(found, "CARD / autoregressive")
    assert ratio.value == pytest.approx(4.0)  # of 2 and 8
    assert 2.0 <= ratio.low < ratio.value < ratio.high <= 8.0


def test_interval_holds_the_true_ratio_about_nineteen_times_in_twenty() -> None:
    generator = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        low, high = interval(np.exp(generator.normal(0.3, 0.5, 40)).tolist())
        held += low <= np.exp(0.3) <= high
    assert 180 <= held <= 198


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


def test_texts_that_differ_are_named() -> None:
    assert "DIFFER" in report(equal=False).markdown()
    assert "DIFFER" not in report().markdown()
