"""From completions to rows and ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.activity import DraftActivity
from bench.contest import Completion, Contender
from bench.figures import Row, summarise
from bench.measurement import Measurement, Phases, Task
from bench.prompts import Prompt
from bench.ratios import Ratio, interval, ratios

TOKENS = 100
RANKS = {0.0: [np.array([0, 0, 0, 1, 0, 0, 0, 1])]}


def _complete(task: Task) -> Measurement:
    raise AssertionError("nothing is decoded here")


ALONE = Contender("autoregressive", "in_process", 1, 1, complete=_complete)
TURNS = Contender("draft_then_verify", "in_process", 2, 5, 4, 1, complete=_complete)
CARD = Contender("card", "in_process", 1, 4, complete=_complete)
SERVED = Contender("card", "grpc", 1, 4, complete=_complete)
PLAIN = Contender("llama_cpp", "peer", 2, 1, complete=_complete)
LOOKUP = Contender("llama_cpp_prompt_lookup", "peer", 2, 1, 10, complete=_complete)


def completion(
    contender: Contender,
    prompt: str,
    speed: float,
    *,
    equal: bool = True,
    category: str = "",
    **counted: Any,
) -> Completion:
    values: dict[str, Any] = {"steps": TOKENS, "first_token_s": 0.1, **counted}
    measured = Measurement(text="", tokens=None, generated=TOKENS, seconds=TOKENS / speed, **values)
    task = Task(Prompt(prompt, prompt, (1,), category), 0.0, 0, TOKENS)
    return Completion(contender, task, measured, equal, 0.5)


def speeds(contender: Contender, **by_prompt: float) -> list[Completion]:
    return [completion(contender, prompt, speed) for prompt, speed in by_prompt.items()]


def row_of(rows: list[Row], system: str, where: str = "in_process") -> Row:
    (row,) = (row for row in rows if (row.system, row.where) == (system, where))
    return row


def answer(found: list[Ratio], name: str, kind: str = "all") -> Ratio:
    (ratio,) = (ratio for ratio in found if (ratio.name, ratio.kind) == (name, kind))
    return ratio


# --- rows -------------------------------------------------------------------------------------


def test_only_our_texts_must_be_equal_and_a_peers_common_prefix_is_told() -> None:
    rows = summarise(
        [
            *speeds(ALONE, a=100, b=100),
            completion(CARD, "a", 300),
            completion(CARD, "b", 300, equal=False),
            completion(PLAIN, "a", 90, equal=False),
        ],
        RANKS,
    )
    told = {row.system: (row.texts_equal, row.common_prefix) for row in rows}
    assert told == {"autoregressive": (True, None), "card": (False, None), "llama_cpp": (None, 0.5)}


def test_tokens_per_step_are_held_against_those_of_the_drafts_best_chain() -> None:
    rows = summarise([*speeds(ALONE, a=100), completion(CARD, "a", 300, steps=50)], RANKS)
    card = row_of(rows, "card")
    assert (card.agreement, card.ideal_tokens_per_step) == (0.75, 4.0)
    assert card.share_of_ideal == pytest.approx(2.0 / 4.0)
    assert row_of(rows, "autoregressive").ideal_tokens_per_step is None


def test_shares_are_of_all_texts_together() -> None:
    counted: dict[str, Any] = {"steps": 10, "accepted": 90, "drafted": 120, "queries": 9, "hits": 6}
    rows = summarise(
        [
            *speeds(ALONE, a=100),
            completion(
                CARD, "a", 50, **counted, target_wait_s=0.2, first_token_s=0.4,
                draft=DraftActivity(idle_ns=500_000_000, busy_ns=1_400_000_000, passes=2_000),
                phases=Phases(steps=8, query=4.0, forward=80.0, verify=8.0),
            ),
        ],
        RANKS,
    )  # fmt: skip
    row = row_of(rows, "card")
    assert (row.tokens_per_step, row.mean_accepted) == (10.0, 9.0)
    assert row.hit_rate == pytest.approx(2 / 3)
    assert row.empty_query_share == pytest.approx(0.3)
    assert row.draft_idle_share == pytest.approx(0.25)
    assert row.draft_ms_per_pass == pytest.approx(0.7)
    assert row.target_wait_share == pytest.approx(0.1)
    assert row.time_to_first_token_ms == pytest.approx(400)
    assert (row.query_ms, row.forward_ms, row.verify_ms) == (0.5, 10.0, 1.0)
    assert row.ms_per_step == pytest.approx(200)  # 1.6 s behind the first token, 8 steps


# --- ratios -----------------------------------------------------------------------------------


def test_a_ratio_is_the_geometric_mean_of_what_each_text_gained() -> None:
    found = ratios([*speeds(ALONE, a=100, b=10), *speeds(CARD, a=200, b=80)])
    ratio = answer(found, "CARD / autoregressive")
    assert ratio.value == pytest.approx(4.0)  # of 2 and 8
    assert 2.0 <= ratio.low < ratio.value < ratio.high <= 8.0


def test_the_best_of_a_peer_is_the_mode_that_is_fastest_over_all_texts() -> None:
    found = ratios(
        [*speeds(CARD, a=200, b=200), *speeds(PLAIN, a=100, b=100), *speeds(LOOKUP, a=50, b=400)]
    )
    ratio = answer(found, "CARD / llama.cpp's best")
    assert ratio.to == "llama_cpp_prompt_lookup"
    assert ratio.value == pytest.approx(2**0.5)  # of 4 and 1/2


def test_what_is_served_is_compared_with_itself_in_process() -> None:
    found = ratios([*speeds(CARD, a=400), *speeds(SERVED, a=300)])
    assert answer(found, "CARD through gRPC / in process").value == pytest.approx(0.75)


def test_the_interval_holds_the_true_ratio_about_nineteen_times_in_twenty() -> None:
    generator = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        low, high = interval(np.exp(generator.normal(0.3, 0.5, 40)).tolist())
        held += low <= np.exp(0.3) <= high
    assert 180 <= held <= 198
