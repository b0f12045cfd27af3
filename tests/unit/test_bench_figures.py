"""From completions to rows: medians, ratios of the same visit, shares."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bench.activity import DraftActivity
from bench.conditions import Conditions, Machine
from bench.contest import Completion, Contender
from bench.figures import Figures, Row, median_curve, summarise
from bench.measurement import Measurement, Phases, Task
from bench.prompts import Prompt
from bench.report import print_tables, store

TOKENS = 100
RANKS = {0.0: [np.array([0, 0, 0, 1, 0, 0, 0, 1])]}
COSTS = {1: {1: 2.0, 4: 3.0}, 2: {1: 1.0, 4: 2.5}}
MACHINE = Machine("a processor", 2, 8.0, "Linux", "3.11", "2.13", "2026.4", 0.1)


def _complete(task: Task) -> Measurement:
    raise AssertionError("nothing is decoded here")


ONE_THREAD = Contender("autoregressive", "in_process", 1, 1, complete=_complete)
TWO_THREADS = Contender("autoregressive", "in_process", 2, 1, complete=_complete)
GAMMA_4 = Contender("draft_then_verify", "in_process", 2, 5, 4, 1, complete=_complete)
GAMMA_8 = Contender("draft_then_verify", "in_process", 2, 9, 8, 1, complete=_complete)
CARD = Contender("card", "in_process", 1, 4, complete=_complete)
SERVED = Contender("card", "grpc", 1, 4, complete=_complete)


def completion(
    contender: Contender, prompt: str, speed: float, *, equal: bool = True, **counted: Any
) -> Completion:
    values: dict[str, Any] = {
        "steps": TOKENS,
        "drafted": 0,
        "accepted": 0,
        "queries": 0,
        "hits": 0,
        "draft": DraftActivity(0, 0, 0),
        "first_token_s": 0.1,
        "generated": TOKENS,
        **counted,
    }
    measured = Measurement(text="", tokens=None, seconds=TOKENS / speed, **values)
    task = Task(Prompt(prompt, prompt, (1,)), 0.0, 0, TOKENS)
    return Completion(contender, task, 0, measured, equal)


def row_of(figures: Figures, system: str, where: str = "in_process") -> Row:
    (row,) = (row for row in figures.rows if (row.system, row.where) == (system, where))
    return row


def speeds(contender: Contender, **by_prompt: float) -> list[Completion]:
    return [completion(contender, prompt, speed) for prompt, speed in by_prompt.items()]


def conditions(wanted: int, numbers: list[int]) -> Conditions:
    return Conditions(
        "./scripts/bench", "2026-01-01", MACHINE, {"engine": "torch"}, "p.jsonl", wanted, numbers,
        TOKENS, 1, {"target": "openvino", "draft": "torch"}, "bfloat16", True, COSTS, {1: 0.3},
        COSTS[2], 0.7,
    )  # fmt: skip


def test_a_ratio_compares_completions_of_the_same_prompt() -> None:
    completions = [
        *speeds(ONE_THREAD, a=100, b=10, c=200),
        *speeds(CARD, a=150, b=40, c=600),
    ]
    row = row_of(summarise(completions, RANKS, COSTS), "card")
    assert row.ratio_to_autoregressive == pytest.approx(3.0)  # median of 1.5, 4 and 3
    assert row.tokens_per_s == pytest.approx(150)


def test_the_best_thread_count_is_what_others_are_compared_with() -> None:
    completions = [
        *speeds(ONE_THREAD, a=100, b=100, c=900),
        *speeds(TWO_THREADS, a=200, b=200, c=200),
        *speeds(CARD, a=400, b=400, c=400),
    ]
    figures = summarise(completions, RANKS, COSTS)
    assert row_of(figures, "autoregressive").threads == 2
    assert row_of(figures, "autoregressive").ratio_to_autoregressive == 1.0
    assert row_of(figures, "card").ratio_to_autoregressive == pytest.approx(2.0)


def test_the_best_gamma_is_the_row_and_every_gamma_is_kept() -> None:
    completions = [
        *speeds(ONE_THREAD, a=100),
        *speeds(GAMMA_4, a=300),
        *speeds(GAMMA_8, a=200),
    ]
    figures = summarise(completions, RANKS, COSTS)
    assert row_of(figures, "draft_then_verify").gamma == 4
    assert [row.gamma for row in figures.swept] == [None, 4, 8]


def test_a_served_system_is_compared_with_itself_in_process() -> None:
    completions = [*speeds(ONE_THREAD, a=100), *speeds(CARD, a=400), *speeds(SERVED, a=300)]
    served = row_of(summarise(completions, RANKS, COSTS), "card", "grpc")
    assert served.ratio_to_in_process == pytest.approx(0.75)
    assert served.ratio_to_autoregressive == pytest.approx(3.0)


def test_one_different_text_shows_in_its_row_alone() -> None:
    completions = [
        *speeds(ONE_THREAD, a=100, b=100),
        completion(CARD, "a", 300),
        completion(CARD, "b", 300, equal=False),
    ]
    figures = summarise(completions, RANKS, COSTS)
    assert row_of(figures, "autoregressive").texts_equal
    assert not row_of(figures, "card").texts_equal


def test_the_share_of_ideal_is_speed_over_ideal_tokens_times_gain_per_pass() -> None:
    completions = [*speeds(ONE_THREAD, a=50), *speeds(TWO_THREADS, a=100), *speeds(CARD, a=80)]
    row = row_of(summarise(completions, RANKS, COSTS), "card")
    # Passes of 4 rows: 4 tokens each on this text. A pass alone takes 1 ms with two threads, one
    # of 4 rows 3 ms with CARD's single thread.
    assert row.ideal_tokens_per_step == 4.0
    assert row.share_of_ideal == pytest.approx(0.8 / (4.0 * 1.0 / 3.0))
    assert row.agreement == 0.75


def test_behind_the_first_token_only_what_was_decoded_counts() -> None:
    completions = [
        *speeds(ONE_THREAD, a=50, b=50),  # 99 tokens in 1.9 s
        *speeds(CARD, a=100, b=100),  # 99 tokens in 0.9 s
        *speeds(SERVED, a=100, b=100),
    ]
    figures = summarise(completions, RANKS, COSTS)
    row = row_of(figures, "card")
    assert row.ratio_to_autoregressive == pytest.approx(2.0)
    assert row.decoding_ratio == pytest.approx(1.9 / 0.9)
    assert row.decoding_share_of_ideal == pytest.approx(1.9 / 0.9 / (4.0 * 2.0 / 3.0))
    served = row_of(figures, "card", "grpc")
    assert served.decoding_ratio is served.decoding_share_of_ideal is None


@pytest.mark.parametrize("counted", [{"generated": 1}, {"first_token_s": TOKENS / 100}])
def test_of_texts_that_come_with_their_first_token_there_is_no_speed_behind_it(
    counted: dict[str, Any],
) -> None:
    completions = [completion(ONE_THREAD, "a", 50), completion(CARD, "a", 100, **counted)]
    row = row_of(summarise(completions, RANKS, COSTS), "card")
    assert row.decoding_ratio is row.decoding_share_of_ideal is None


def test_shares_are_of_all_texts_together() -> None:
    counted: dict[str, Any] = {"steps": 10, "accepted": 90, "drafted": 120, "queries": 9, "hits": 6}
    completions = [
        *speeds(ONE_THREAD, a=100),
        completion(
            CARD, "a", 50, **counted, target_wait_s=0.2, first_token_s=0.4,
            draft=DraftActivity(idle_ns=500_000_000, busy_ns=1_400_000_000, passes=2_000),
            phases=Phases(steps=8, query=4.0, forward=80.0, walk=8.0),
        ),
    ]  # fmt: skip
    row = row_of(summarise(completions, RANKS, COSTS), "card")
    assert (row.tokens_per_step, row.mean_accepted) == (10.0, 9.0)
    assert row.hit_rate == pytest.approx(2 / 3)
    assert row.empty_query_share == pytest.approx(0.3)
    assert row.draft_idle_share == pytest.approx(0.25)
    assert row.draft_ms_per_pass == pytest.approx(0.7)
    assert row.target_wait_share == pytest.approx(0.1)
    assert row.time_to_first_token_ms == pytest.approx(400)
    assert (row.query_ms, row.forward_ms, row.walk_ms) == (0.5, 10.0, 1.0)
    assert row.ms_per_step == pytest.approx(200)  # 1.6 s behind the first token, 8 steps


def test_what_cannot_be_seen_through_grpc_is_none() -> None:
    completions = [*speeds(ONE_THREAD, a=100), *speeds(CARD, a=200), *speeds(SERVED, a=150)]
    row = row_of(summarise(completions, RANKS, COSTS), "card", "grpc")
    assert (row.forward_ms, row.target_wait_share) == (None, None)


def test_a_cost_curve_is_the_median_of_its_measurements() -> None:
    assert median_curve([{4: 3.0, 1: 1.0}, {1: 2.0, 4: 9.0}, {1: 9.0, 4: 4.0}]) == {1: 2.0, 4: 4.0}


def test_the_stored_figures_hold_every_row_and_their_conditions(tmp_path: Path) -> None:
    completions = [*speeds(ONE_THREAD, a=100), *speeds(CARD, a=200)]
    figures = summarise(completions, RANKS, COSTS)
    file = tmp_path / "new" / "figures.json"
    beside = store(file, figures, conditions(wanted=1, numbers=[0]))
    content = json.loads(file.read_text())
    assert [Row(**_tupled(row)) for row in content["rows"]] == figures.rows
    assert content["machine"] == asdict(MACHINE)
    assert content["settings"] == {"engine": "torch"}
    assert content["prompt_numbers"] == [0]
    assert "prompt_count" not in content, "their number says it"
    markdown = beside.read_text()
    assert "1 prompt of p.jsonl, 100 tokens each" in markdown
    assert "`./scripts/bench`" in markdown
    assert "OpenVINO 2026.4, PyTorch 2.13" in markdown
    assert "engine openvino (target), torch (draft)" in markdown
    assert "| CARD | in process | 0 | 200 |" in markdown


def test_what_the_pair_allows_comes_first(tmp_path: Path) -> None:
    completions = [*speeds(ONE_THREAD, a=100), *speeds(CARD, a=200), *speeds(SERVED, a=150)]
    figures = summarise(completions, RANKS, COSTS)
    markdown = store(tmp_path / "f.json", figures, conditions(1, [0])).read_text()
    pair = "| t | agreement | rows | ideal tokens/step |\n| --- | --- | --- | --- |\n"
    assert pair + "| 0 | 0.750 | 4 | 4.00 |\n\n## Speed" in markdown, "once for both places"
    output = StringIO()
    print_tables(Console(file=output, width=240), figures)
    assert output.getvalue().startswith("The pair")


@pytest.mark.parametrize(
    ("wanted", "finished", "said"),
    [
        (
            40,
            1,
            "The time was over after 1 of the 40 prompts wanted; a larger --minutes has room for "
            "more. Medians over 1 prompt say little.",
        ),
        (
            40,
            5,
            "The time was over after 5 of the 40 prompts wanted; a larger --minutes has room for "
            "more.",
        ),
        (3, 3, "Medians over 3 prompts say little."),
        (4, 4, None),
    ],
)
def test_too_few_prompts_are_told(
    tmp_path: Path, wanted: int, finished: int, said: str | None
) -> None:
    found = conditions(wanted, list(range(finished)))
    assert found.reservation == said
    figures = summarise([*speeds(ONE_THREAD, a=100)], RANKS, COSTS)
    markdown = store(tmp_path / "f.json", figures, found).read_text()
    assert (f"\n\n**{said}**\n\n## " in markdown) == (said is not None)


def _tupled(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"tokens_per_s_quartiles": tuple(row["tokens_per_s_quartiles"])}
