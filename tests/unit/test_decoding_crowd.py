"""Many sessions keep or lose their draft by what passes really gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, Stream, autoregressive, request_of, settings_of

from card.decoding import crowd as crowd_module
from card.decoding.crowd import Crowd
from card.decoding.gain import EXPECTED_GAIN
from card.decoding.rows import RowPlan
from card.decoding.session import TargetSession
from card.decoding.walk import Verdict

MODEL = FakeModel()


def hopeful(agreement: float, sessions: int) -> float:
    """A promise that lets every number of sessions begin with the draft."""
    return 4.0


@dataclass(frozen=True)
class World:
    """What a pass costs and gives with and without the draft.

    gain    speed-up by the draft
    tokens  of a pass for each session, beside the draft
    """

    gain: float
    tokens: float = 2.0

    def go_on(self, crowd: Crowd, sessions: int, passes: int) -> list[bool]:
        """Whether the draft rested in each of so many passes."""
        found = []
        for _ in range(passes):
            rests = crowd.rests(sessions)
            tokens = sessions if rests else round(sessions * self.tokens)
            seconds = tokens if rests else tokens / self.gain
            crowd.observe(sessions, tokens, seconds, 0 if rests else sessions)
            found.append(rests)
        return found


def settled(world: World, sessions: int = 16) -> list[bool]:
    """How a crowd goes on after it has learnt."""
    crowd = Crowd(hopeful)
    world.go_on(crowd, sessions, 100)
    return world.go_on(crowd, sessions, 30_000)


@pytest.mark.parametrize("sessions", [2, 5, 16, 64])
def test_a_crowd_whose_draft_costs_more_than_it_gives_goes_without(sessions: int) -> None:
    found = settled(World(gain=0.8), sessions)
    assert found.count(False) < 0.02 * len(found)


@pytest.mark.parametrize("sessions", [2, 5, 16, 64])
def test_a_crowd_whose_draft_pays_keeps_it(sessions: int) -> None:
    found = settled(World(gain=1.3), sessions)
    assert found.count(True) < 0.02 * len(found)


def test_a_gain_that_later_prompts_would_pay_for_is_none() -> None:
    assert settled(World(gain=1.02)).count(True) > 0.9 * 30_000


def test_it_is_tried_again_and_what_changed_is_noticed() -> None:
    crowd = Crowd(hopeful)
    World(gain=0.8).go_on(crowd, 16, 2000)
    assert World(gain=1.5).go_on(crowd, 16, 20_000)[-5000:].count(True) < 300
    assert World(gain=0.8).go_on(crowd, 16, 20_000)[-5000:].count(False) < 300


def test_passes_that_give_much_beside_the_draft_are_not_risked_for_a_trial() -> None:
    crowd = Crowd(hopeful)
    assert not any(World(gain=2.0, tokens=4.0).go_on(crowd, 4, 5000))


def test_one_session_alone_never_loses_its_draft_to_the_crowd() -> None:
    assert not any(World(gain=0.5).go_on(Crowd(hopeful), 1, 3000))


@pytest.mark.parametrize(("many", "few"), [(16, 4), (16, 8), (9, 8), (3, 2), (5, 4)])
def test_sizes_are_told_apart_and_a_burst_is_known_again_at_once(many: int, few: int) -> None:
    crowd = Crowd(hopeful)
    World(gain=0.7).go_on(crowd, many, 200)
    assert crowd.rests(many)
    assert not any(World(gain=2.0, tokens=4.0).go_on(crowd, few, 500)[100:])
    assert crowd.rests(many)


def test_whoever_comes_after_a_crowd_has_dispersed_is_counted_afresh() -> None:
    crowd = Crowd(hopeful)
    World(gain=0.7).go_on(crowd, 16, 200)
    crowd.disperse()
    assert not crowd.rests(2)
    crowd.disperse()
    assert crowd.rests(16)


def test_ways_that_were_measured_with_other_numbers_of_sessions_are_not_compared() -> None:
    """The draft pays, but the trial without it meets a fuller house."""
    crowd, world = Crowd(hopeful), World(gain=1.5)
    world.go_on(crowd, 9, 72)
    found = world.go_on(crowd, 16, 40)
    assert any(found), "a trial was under way"
    assert not crowd.rests(16)


def test_a_draft_that_reads_what_it_missed_is_not_judged_yet() -> None:
    crowd = Crowd(hopeful)
    for _ in range(45):
        assert not crowd.rests(8)
        crowd.observe(8, 8, 8.0, found=0)
    assert World(gain=1.5).go_on(crowd, 8, 30).count(True) <= 6


def test_a_crowd_that_shrinks_for_a_few_passes_does_not_wake_the_draft() -> None:
    crowd = Crowd(hopeful)
    World(gain=0.7).go_on(crowd, 16, 200)
    found = [crowd.rests(sessions) for sessions in (16, 9, 7, 9, 16)]
    assert found == [True] * 5


def test_a_crowd_whose_rows_promise_nothing_begins_without_and_tries_later() -> None:
    crowd = Crowd(lambda agreement, _: 1.2 if agreement == 1.0 else 0.9)
    assert all(World(gain=0.7).go_on(crowd, 16, 400))
    found = World(gain=0.7).go_on(crowd, 16, 30_000)
    assert 0 < found.count(False) < 0.02 * len(found)


def test_a_crowd_whose_rows_would_not_pay_for_a_draft_that_is_always_right_hardly_ever_tries() -> (
    None
):
    found = World(gain=0.7).go_on(Crowd(lambda *_: 1.1), 16, 30_000)
    assert all(found[:8000])
    assert 0 < found.count(False) < 0.01 * len(found)


def test_a_promise_that_was_wrong_is_found_out() -> None:
    crowd = Crowd(lambda agreement, _: 1.2 if agreement == 1.0 else 0.9)
    found = World(gain=1.3).go_on(crowd, 16, 30_000)
    assert found[0]
    assert found[1000:].count(True) < 0.02 * len(found)


# --- in the loops ---------------------------------------------------------------------------------


@pytest.fixture
def both() -> Iterator[OneProcess]:
    engines = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    with OneProcess(*engines, settings_of(rows="auto")) as loops:
        yield loops


def fake(engine: object) -> FakeEngine:
    assert isinstance(engine, FakeEngine)
    return engine


def test_sessions_whose_passes_promise_nothing_begin_without_the_draft() -> None:
    """Four rows cost little more than one, and eight much more: two sessions gain, four do not."""
    engines = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    engines[0].row_costs_ms, engines[0].alone_share = {1: 1.0, 2: 1.0, 4: 1.2, 8: 8.0}, 0.8
    with OneProcess(*engines, settings_of(rows="auto")) as both:
        for sessions, rests in ((4, True), (2, False)):
            streams = opened(both, ["card"] * sessions)
            both.target.step()
            assert both.pool.draft_rests is rests
            texts = both.run(streams)
            assert texts == [autoregressive(MODEL, request_of([n, 1], 20)) for n in range(sessions)]
            both.close(streams)


def test_a_crowd_that_began_without_the_draft_tries_it_in_earnest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crowd_module, "_FIRST_STAY", 30)
    engines = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    engines[0].row_costs_ms, engines[0].alone_share = {1: 1.0, 4: 1.2, 16: 3.0}, 0.8
    with OneProcess(*engines, settings_of(rows="auto", lookahead=0)) as both:
        streams = opened(both, ["card"] * 4, tokens=100)
        both.run(streams, draft_steps=4)
        assert min(stream.counters.queries for stream in streams) > 0
        assert min(stream.counters.hits for stream in streams) > 0


def opened(both: OneProcess, decodings: list[str], tokens: int = 20) -> list[Stream]:
    return [
        both.open(request_of([number, 1], tokens, decoding), number)
        for number, decoding in enumerate(decodings)
    ]


def resting(monkeypatch: pytest.MonkeyPatch, *, rests: bool) -> None:
    monkeypatch.setattr(Crowd, "rests", lambda *_: rests)


def test_while_the_crowd_rests_the_draft_computes_nothing_and_texts_stay_the_same(
    both: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting(monkeypatch, rests=True)
    streams = opened(both, ["card"] * 3)
    both.target.step()
    texts = both.run(streams)
    assert texts == [autoregressive(MODEL, request_of([n, 1], 20)) for n in range(3)]
    assert fake(both.draft_engine).batches == []
    assert sum(stream.counters.queries for stream in streams) == 0


def test_sessions_of_other_pacings_keep_their_draft(
    both: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting(monkeypatch, rests=True)
    streams = opened(both, ["card", "draft_then_verify", "pearl"])
    both.target.step()
    both.run(streams, draft_steps=6)
    drafted = {rows.session for batch in fake(both.draft_engine).batches for rows in batch}
    assert len(drafted) == 2
    assert [stream.counters.hits > 0 for stream in streams] == [False, True, True]


def test_a_draft_that_is_woken_and_sent_to_rest_at_random_changes_no_text(
    both: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = iter(range(10_000))
    monkeypatch.setattr(Crowd, "rests", lambda *_: next(decided) * 2654435761 % 7 < 3)
    streams = opened(both, ["card"] * 4, tokens=60)
    texts = both.run(streams, draft_steps=3)
    assert texts == [autoregressive(MODEL, request_of([n, 1], 60)) for n in range(4)]
    assert sum(stream.counters.hits for stream in streams) > 0


def test_a_fresh_target_wakes_the_draft_that_its_predecessor_sent_to_rest(
    both: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting(monkeypatch, rests=True)
    opened(both, ["card"] * 2)
    both.target.step()
    assert both.pool.draft_rests
    both.restart_target(FakeEngine(MODEL, tree=False))
    assert not both.pool.draft_rests


def test_a_fixed_number_of_rows_asks_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    resting(monkeypatch, rests=True)
    engines = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    with OneProcess(*engines, settings_of(rows=8)) as both:
        opened(both, ["card"] * 3)
        both.target.step()
        assert not both.pool.draft_rests


def test_passes_that_nobody_drafts_for_teach_the_crowd_nothing(
    both: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[int] = []
    monkeypatch.setattr(Crowd, "observe", lambda _, sessions, *__: observed.append(sessions))
    alone = opened(both, ["autoregressive"] * 3)
    both.run(alone)
    both.close(alone)
    assert observed == []
    both.run(opened(both, ["autoregressive"] * 2 + ["card"]))
    assert 3 in observed


def test_guesses_made_while_the_draft_rests_say_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the first passes of a trial would send every session to rest again."""
    rates = []
    original = TargetSession.judge_draft

    def judge(session: TargetSession, verdict: Verdict, plan: RowPlan, sharing: int) -> None:
        original(session, verdict, plan, sharing)
        rates.append(session.judgement.gain.rate)

    monkeypatch.setattr(TargetSession, "judge_draft", judge)
    resting(monkeypatch, rests=True)
    engines = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    with OneProcess(*engines, settings_of(rows="auto", lookahead=4)) as both:
        streams = opened(both, ["card"] * 2, tokens=60)
        both.run(streams)
        assert sum(stream.counters.drafted for stream in streams) > 0, "it guessed"
    assert set(rates) == {EXPECTED_GAIN}


def test_a_dead_draft_teaches_the_crowd_nothing_and_is_not_sent_to_rest(
    both: OneProcess,
) -> None:
    both.kill_draft()
    for stream in range(12):
        streams = opened(both, ["card"] * 4, tokens=40)
        for _ in range(200):
            both.target.step()
            assert not both.pool.draft_rests, stream
        both.close(streams)
    both.revive_draft()
    streams = opened(both, ["card"] * 4, tokens=40)
    both.run(streams)
    assert sum(stream.counters.hits for stream in streams) > 0


def test_a_session_that_waits_for_its_draft_keeps_the_target_to_its_threads(
    both: OneProcess,
) -> None:
    waiting = opened(both, ["draft_then_verify", "autoregressive"])
    both.target.step()  # reads the prompts
    for _ in range(5):
        both.target.step()
        assert not fake(both.target_engine).alone
    assert len(waiting[0].output) < len(waiting[1].output)


@pytest.mark.parametrize(
    ("decodings", "rests", "draft_lives", "alone"),
    [
        (["autoregressive"], False, True, True),
        (["card"], False, True, False),
        (["card"], False, False, True),
        (["card", "autoregressive"], False, True, False),
        (["card", "autoregressive"], True, True, True),
        (["card", "pearl"], True, True, False),
    ],
)
def test_the_target_takes_every_core_while_no_draft_works(
    both: OneProcess,
    monkeypatch: pytest.MonkeyPatch,
    decodings: list[str],
    rests: bool,
    draft_lives: bool,
    alone: bool,
) -> None:
    resting(monkeypatch, rests=rests)
    opened(both, decodings)
    if not draft_lives:
        both.kill_draft()
    taken = []
    for _ in range(3):
        both.target.step()
        taken.append(fake(both.target_engine).alone)
    assert taken == [True, alone, alone], "while it reads a prompt, the draft has a head start only"
