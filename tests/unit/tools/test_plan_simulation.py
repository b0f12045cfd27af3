"""The simulated loops: virtual time, the candidate tree, and what pacings must do in the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from card.speculation.control import ControlConfig
from card.speculation.control.measured import Measured
from card.speculation.pacing import PACINGS
from planning.acceptance import LEVELS, Foresight, TextRecord
from planning.candidates import Text
from planning.clock import Clock, Process, Signal, Work
from planning.costs import MeasuredCost
from planning.errors import PlanError
from planning.scenario import Delays, Machinery, Speculation
from planning.simulation import simulate

SURE = [0.98, 0.01]


def text_of(
    ranks: str, proposals: str | None = None, hit_rate: float = 0.0, parcels: str | None = None
) -> Text:
    record = TextRecord(
        prompt_tokens=8,
        hit_rate=hit_rate,
        ranks=ranks,
        confidence="9" * len(ranks),
        proposals=proposals or "-" * len(ranks),
        parcels=parcels,
    )
    return Text(record, Foresight(temperature=0, children=[SURE] * LEVELS, texts=[record]))


def machinery(target_ms: float = 10.0, draft_ms: float = 1.0, **delays: float) -> Machinery:
    return Machinery(MeasuredCost({1: target_ms}), MeasuredCost({1: draft_ms}), Delays(**delays))


def test_two_processes_on_one_device_share_its_bandwidth() -> None:
    clock, ended = Clock(), []

    def process(name: str, ms: float, demand: float) -> Process:
        yield Work(ms, "device", demand)
        ended.append((name, clock.now))

    def last() -> Process:
        yield Work(100.0)

    clock.start(last())
    clock.start(process("long", 10.0, 0.8))
    clock.start(process("short", 5.0, 0.7))
    clock.run()
    # Both are slowed by 1.5 until the short one ends; then the long one runs alone.
    assert [name for name, _ in ended] == ["short", "long"]
    assert [at for _, at in ended] == pytest.approx([7.5, 12.5])


def test_loops_that_wait_for_each_other_are_named() -> None:
    clock, signal = Clock(), Signal()

    def sleeper() -> Process:
        yield signal

    clock.start(sleeper())
    with pytest.raises(RuntimeError, match="wait for each other"):
        clock.run()


def test_a_draft_that_is_always_right_fills_every_row() -> None:
    config = Speculation(width=1, depth=16, rows=5, num_draft_tokens=4)
    for pacing in ("draft_then_verify", "card"):
        run = simulate(text_of("0" * 101), pacing, config, machinery())
        assert run.accepted == run.steps * 4 or run.rows_of_steps[0] < 5
    # Draft-then-verify: four passes of the draft and one of the target for five tokens.
    run = simulate(text_of("0" * 101), "draft_then_verify", config, machinery())
    assert run.ms / run.steps == pytest.approx(14.0)


def test_a_draft_that_is_always_wrong_costs_card_nothing_but_the_hidden_passes() -> None:
    text = text_of("." * 41)
    card = simulate(text, "card", Speculation(width=2, rows=4), machinery())
    alone = simulate(text, "autoregressive", Speculation(), machinery())
    assert card.accepted == 0
    assert card.ms == pytest.approx(alone.ms)


@pytest.mark.parametrize("pacing", PACINGS)
def test_the_same_seed_gives_the_same_figures(pacing: str) -> None:
    text = text_of("00100.0020" * 6)
    config = Speculation(width=3, depth=8, rows=6, num_draft_tokens=3)
    served = machinery(bus=0.1, wake=0.5)
    runs = [simulate(text, pacing, config, served, seed=3) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].tokens == 60


def test_a_text_that_repeats_itself_is_decoded_without_the_draft_until_it_is_surprised() -> None:
    repeating, broken = "1" * 120, "1" * 60 + "0" + "-" * 59
    curve = {1: 4.0, 8: 5.0, 16: 6.0, 32: 8.0}
    speculation = Speculation(ngram_tokens=6)
    with_cores = replace(machinery(), target_alone=MeasuredCost({1: 3.2}))
    config = ControlConfig(ngram_tokens=6, costs_ms=curve, alone_share=0.8)
    runs = {
        proposals: simulate(
            text_of("0" * 120, proposals, hit_rate=1.0),
            "card",
            speculation,
            with_cores,
            0,
            Measured(config),
        )
        for proposals in (repeating, broken)
    }
    assert runs[repeating].rows_alone
    assert len(runs[repeating].rows_of_steps) < len(runs[broken].rows_of_steps)
    assert runs[broken].rows_alone
    assert runs[broken].draft_passes > runs[repeating].draft_passes


@pytest.mark.parametrize("pacing", ["card", "auto"])
def test_a_text_with_a_draft_gets_n_grams_too(pacing: str) -> None:
    """While the draft makes its first pass."""
    text, config = text_of("0" * 101, "1" * 101, hit_rate=0.9), Speculation(ngram_tokens=4)
    run = simulate(text, pacing, config, machinery(draft_ms=1e4))
    assert (run.draft_passes, run.hits) == (0, 0)
    assert run.accepted == 4 * run.steps
    assert not run.rows_alone


def test_a_draft_that_is_always_wrong_is_stopped_and_the_next_text_begins_so() -> None:
    curve = {1: 4.0, 4: 6.0, 8: 9.0}
    with_cores = replace(machinery(), target_alone=MeasuredCost({1: 7.0}))
    control = Measured(ControlConfig(costs_ms=curve, alone_share=0.9))
    text = text_of("1" * 200)  # never the first choice
    first, second = (
        simulate(text, "card", Speculation(), with_cores, seed, control) for seed in range(2)
    )
    assert len(second.rows_of_steps) < len(first.rows_of_steps) < len(first.rows_alone)


# --- growth rules of pacings ----------------------------------------------------------------------


@pytest.mark.parametrize("pacing", ["branch", "ssd"])
def test_who_waits_for_chains_gets_them_where_all_agree(pacing: str) -> None:
    config = Speculation(width=8, depth=16, rows=5, num_draft_tokens=4, growth=GROWTH_OF[pacing])
    run = simulate(text_of("0" * 101), pacing, config, machinery())
    # Whatever the draft prepares, the target has four candidates a pass.
    assert run.accepted == pytest.approx(4 * run.steps, abs=4)
    wrong = simulate(text_of("." * 101), pacing, config, machinery())
    assert wrong.steps == 100


GROWTH_OF = {name: pacing.growth or "" for name, pacing in PACINGS.items()}


def test_a_smaller_draft_that_is_right_saves_passes_of_the_draft() -> None:
    config = Speculation(width=1, depth=16, rows=5, num_draft_tokens=4, drafter="hierarchy")
    right, wrong = (
        simulate(text_of("0" * 101, parcels=parcels), "draft_then_verify", config, machinery())
        for parcels in ("1" * 101, "0" * 101)
    )
    assert right.accepted == wrong.accepted
    assert wrong.draft_passes > 3 * right.draft_passes
    with pytest.raises(PlanError, match="smaller draft"):
        simulate(text_of("0" * 101), "draft_then_verify", config, machinery())
