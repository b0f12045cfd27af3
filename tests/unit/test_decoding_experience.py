"""What earlier sessions saw of the draft decides how the next one begins."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.decoding.experience import Experience
from card.decoding.gain import EXPECTED_GAIN, Tally
from card.decoding.judgement import Judgement
from card.decoding.rest import pays
from card.decoding.rows import RowPlan
from card.sampling import SamplingParameters

TARGET = FakeModel()
STRANGER = FakeModel(seed=99)
GREEDY, HOT = SamplingParameters(), SamplingParameters(temperature=1.5, seed=3)
COSTS_MS, ALONE_SHARE = {1: 10.0, 6: 12.0, 12: 17.0}, 0.75
"""As of float32 on two cores: a draft that is right half the time pays, a stranger does not."""
_PATIENCE = 60

HOPELESS, POOR, GOOD = Tally(16, 20), Tally(24, 20), Tally(60, 20)
"""Of these the last two pay."""


def taught(*tallies: Tally, parameters: SamplingParameters = GREEDY) -> Experience:
    experience = Experience()
    for tally in tallies:
        experience.learn(parameters, tally)
    return experience


def rests(experience: Experience, parameters: SamplingParameters = GREEDY) -> bool:
    """Whether the next session begins with a rest of its draft."""
    return not pays(experience.expect(parameters))


def test_a_first_session_is_believed_what_every_draft_is() -> None:
    assert Experience().expect(GREEDY) == EXPECTED_GAIN
    assert not rests(Experience())


def test_belief_falls_slowly_and_rises_at_once() -> None:
    assert not rests(taught(*[GOOD] * 8, *[HOPELESS] * 5))
    assert rests(taught(*[GOOD] * 8, *[HOPELESS] * 24))
    assert taught(*[HOPELESS] * 16, POOR).expect(GREEDY) == POOR.gain
    assert taught(GOOD).expect(GREEDY) == GOOD.gain


def test_what_nobody_saw_weighs_as_much_as_one_session() -> None:
    for texts in (1, 2, 3):
        mean = (EXPECTED_GAIN + texts * HOPELESS.gain) / (texts + 1)
        assert taught(*[HOPELESS] * texts).expect(GREEDY) == pytest.approx(mean)


def test_a_draft_that_pays_a_little_is_never_put_to_rest() -> None:
    assert not rests(taught(*[POOR] * 40))


def test_good_texts_among_many_poor_ones_are_not_put_to_rest_by_them() -> None:
    assert not rests(taught(*[HOPELESS] * 20, GOOD, *[HOPELESS] * 3))


def test_only_sessions_that_gained_vouch_for_the_next() -> None:
    assert not Experience().vouches(GREEDY), "nobody was seen"
    assert taught(POOR).vouches(GREEDY)
    assert not taught(POOR).vouches(HOT)
    for texts in (1, 3):
        assert not taught(*[HOPELESS] * texts).vouches(GREEDY), texts


def unlucky_queries(experience: Experience) -> int:
    """Queries without one right candidate that send a draft to rest."""
    plan, judgement = RowPlan(COSTS_MS, ALONE_SHARE), Judgement()
    judgement.begin(0, experience, GREEDY, plan.promise())
    for query in range(_PATIENCE):
        judgement.weigh(query)
        if not judgement.lets_work(query):
            return query
        judgement.observe(plan, drafted=5, verified=5, accepted=0, corrects=True, sharing=1)
    return _PATIENCE


def test_whom_others_vouch_for_may_be_unlucky_for_longer() -> None:
    strange, vouched = unlucky_queries(Experience()), unlucky_queries(taught(GOOD))
    assert 1.5 * strange <= vouched <= 3 * strange, (strange, vouched)
    assert unlucky_queries(taught(*[HOPELESS] * 3)) < strange


def test_whom_others_vouch_for_is_tried_again_soon_however_much_it_lost() -> None:
    with Service(STRANGER, lookahead=0) as service:
        for parameters, soon in ((GREEDY, False), (HOT, True)):
            experience = service.both.target._experience
            if soon:
                experience.learn(parameters, GOOD)
            stream = service.both.open(request_of([1, 2, 3], 200, parameters=parameters))
            while not (stream.output and service.resting()):
                service.both.draft.step()
                service.both.target.step()
            (session,) = service.both.target._sessions.values()
            rest = session.judgement.rest.until - len(session.history)
            assert (rest <= 32) is soon, rest
            service.both.run([stream])
            service.both.close([stream])


def test_what_saw_next_to_nothing_teaches_nothing_alone() -> None:
    assert taught(Tally(3, 3.9), *[Tally()] * 40).expect(GREEDY) == EXPECTED_GAIN


def test_several_that_saw_next_to_nothing_teach_as_one() -> None:
    together = taught(Tally(1, 1.5), Tally(2, 1.5), Tally(3, 2))
    assert together.expect(GREEDY) == taught(Tally(6, 5)).expect(GREEDY) < EXPECTED_GAIN
    assert together.expect(GREEDY) == taught(Tally(6, 5), Tally(1, 1)).expect(GREEDY)


def test_temperatures_are_told_apart_as_far_as_they_matter() -> None:
    experience = taught(*[HOPELESS] * 40, parameters=HOT)
    assert rests(experience, SamplingParameters(temperature=1.55))
    for other in (GREEDY, SamplingParameters(temperature=0.8)):
        assert experience.expect(other) == EXPECTED_GAIN
    hottest = taught(*[HOPELESS] * 40, parameters=SamplingParameters(temperature=3.0))
    assert rests(hottest, SamplingParameters(temperature=1e38))


def test_penalties_say_nothing_of_texts_without() -> None:
    penalised = SamplingParameters(repetition_penalty=1.3)
    experience = taught(*[HOPELESS] * 40, parameters=penalised)
    assert rests(experience, penalised)
    assert experience.expect(GREEDY) == EXPECTED_GAIN


def test_who_samples_the_likeliest_of_one_token_is_greedy() -> None:
    experience = taught(*[HOPELESS] * 40, parameters=GREEDY)
    assert rests(experience, SamplingParameters(temperature=1.5, top_k=1))


def test_a_hopeless_draft_is_tried_again_until_that_teaches_something() -> None:
    experience = taught(*[HOPELESS] * 40)
    assert [rests(experience) for _ in range(20)] == [True] * 7 + [False] * 13
    experience.learn(GREEDY, Tally(2, 2))
    assert not rests(experience)
    experience.learn(GREEDY, HOPELESS)
    assert rests(experience)


class Service:
    """Both loops, and what the draft did for each session that they wrote."""

    def __init__(self, draft: FakeModel, **speculation: Any) -> None:
        self.target, self.draft = FakeEngine(TARGET, tree=False), FakeEngine(draft, tree=True)
        self.target.row_costs_ms, self.target.alone_share = COSTS_MS, ALONE_SHARE
        how = {"rows": "auto", "lookahead": 6, **speculation}
        self.both = OneProcess(self.target, self.draft, settings_of(**how))

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.both.__exit__()

    def write(
        self,
        tokens: int = 24,
        decoding: str = "card",
        parameters: SamplingParameters = GREEDY,
    ) -> int:
        """One more session, whose text is the target's alone; passes of the draft for it."""
        made = len(self.draft.batches)
        request = request_of([1, 2, 3], tokens, decoding, parameters)
        stream = self.both.open(request)
        assert self.both.run([stream]) == [autoregressive(TARGET, request)]
        self.both.close([stream])
        return len(self.draft.batches) - made

    def lose_hope(self) -> None:
        """Write sessions until the next one begins at rest."""
        assert any(self.is_at_rest() for _ in range(_PATIENCE)), "the draft never rests"

    def resting(self) -> bool:
        """Whether the draft rests for the only session."""
        (session,) = self.both.target._sessions.values()
        return session.judgement.rest.resting(len(session.history))

    def is_at_rest(self) -> bool:
        """Whether a session that begins now has its draft rest from the first token on."""
        return self.write(tokens=8) <= 2


def test_after_some_sessions_a_draft_that_knows_nothing_need_not_begin() -> None:
    with Service(STRANGER) as service:
        rested = [service.write() <= 2 for _ in range(40)]
    first = rested.index(True)
    assert first >= 2, "one text does not settle it"
    pattern = [True] * 7 + [False]
    assert rested[first : first + 24] == pattern * 3, "each eighth session tries it"


def test_a_draft_that_knows_the_target_is_never_sent_to_rest() -> None:
    with Service(TARGET) as service:
        assert all(service.write() > 2 for _ in range(20))


def test_a_session_that_began_at_rest_tries_its_draft_after_128_tokens() -> None:
    with Service(STRANGER) as service:
        service.lose_hope()
        assert service.write(tokens=120) <= 2
        assert service.write(tokens=170) > 4


def test_after_many_that_lost_by_their_draft_a_session_rests_from_end_to_end() -> None:
    with Service(STRANGER) as service:
        for _ in range(24):
            service.write(tokens=160)
        texts = [service.write(tokens=240) <= 2 for _ in range(16)]
    assert sum(texts) == 14, "two of sixteen try it"


def test_within_one_text_a_hopeless_draft_is_not_tried_before_its_loss_is_made_good() -> None:
    with Service(STRANGER, lookahead=0) as service:
        stream = service.both.open(request_of([1, 2, 3], 240))
        tried_at: list[int] = []

        def look() -> None:
            for session in service.both.target._sessions.values():
                if session.drafted:
                    tried_at.append(len(stream.output))

        service.both.run([stream], between=look)
    pauses = [behind - before for before, behind in pairwise(tried_at) if behind - before > 30]
    lost = len(tried_at) * (RowPlan(COSTS_MS, ALONE_SHARE).cost(1) - 1)
    assert pauses, tried_at
    assert min(pauses) > 50 * lost > 100, tried_at
    assert len(tried_at) < 20, tried_at


def test_a_draft_that_is_wanted_again_is_woken() -> None:
    with Service(STRANGER, lookahead=0) as service:
        stream = service.both.open(request_of([1, 2, 3], 240))
        rung: list[int] = []
        worked = False
        while len(rung) < 2 and len(stream.output) < 240:
            before = service.both.pool.slot_bell.rings
            service.both.draft.step()
            service.both.target.step()
            (session,) = service.both.target._sessions.values()
            if session.draft_works and not worked:
                rung.append(service.both.pool.slot_bell.rings > before)
            worked = session.draft_works
    assert rung == [True, True], "at its first query, and behind its first rest"


def test_each_temperature_learns_for_itself() -> None:
    with Service(STRANGER) as service:
        service.lose_hope()
        assert service.write(parameters=HOT) > 4


def test_guesses_from_the_text_teach_nothing_about_the_draft() -> None:
    """A draft that gives no candidate is late, not wrong."""
    with Service(TARGET) as service:
        for _ in range(20):
            request = request_of([1, 2, 1, 2, 1, 2], 24)
            stream = service.both.open(request)
            service.both.run([stream], draft_steps=0)
            service.both.close([stream])
        assert not service.is_at_rest()


@pytest.mark.parametrize(
    ("offered", "changed", "ends_at", "tokens"),
    [
        (6, None, None, 7),
        (6, 4, None, 5),  # those behind the wrong one count for nothing
        (6, 0, None, 1),
        (0, None, None, 0),  # guesses from the text are none of the draft's
        (6, None, 3, 5),  # the text ends with a candidate
    ],
)
def test_of_a_chain_what_was_right_counts(
    offered: int, changed: int | None, ends_at: int | None, tokens: int
) -> None:
    prompt = [1, 2, 1, 2, 1, 2]
    text = autoregressive(TARGET, request_of(prompt, 9))
    nodes = np.array(text[1 : 1 + offered])
    if changed is not None:
        nodes[changed] = (nodes[changed] + 1) % TARGET.vocabulary
    end = SamplingParameters(end_ids=() if ends_at is None else (text[1 + ends_at],))
    with Service(TARGET, rows=8) as service:
        both = service.both
        stream = both.open(request_of(prompt, 9, parameters=end))
        while not stream.output:
            both.target.step()
        both.pool.draft_slot(0).replace(
            stream.generation,
            len(prompt) + 1,
            nodes,
            np.arange(len(nodes)) - 1,
            np.full(len(nodes), -0.1),
        )
        both.target.step()
        (session,) = both.target._sessions.values()
        cost = RowPlan(COSTS_MS, ALONE_SHARE).cost(1 + offered) if tokens else 0.0
        assert session.judgement.gain.seen == Tally(tokens, cost)


def test_what_a_draft_taught_that_died_is_forgotten() -> None:
    with Service(STRANGER) as service:
        service.lose_hope()
        service.both.kill_draft()
        assert service.write() <= 2
        service.both.revive_draft()
        assert service.write() > 4


def test_other_ways_to_decode_neither_ask_nor_teach() -> None:
    with Service(STRANGER) as service:
        for _ in range(30):
            assert service.write(decoding="draft_then_verify") > 4
        assert not service.is_at_rest()
        service.lose_hope()
        assert service.write(decoding="draft_then_verify") > 4


def test_rows_that_the_settings_fix_are_drafted_for_whatever_was_seen() -> None:
    with Service(STRANGER, rows=8) as service:
        assert all(service.write() > 4 for _ in range(30))


@pytest.mark.parametrize(("tokens", "rests"), [(24, False), (80, True)])
def test_a_draft_that_finds_nothing_is_given_time_to_catch_up(tokens: int, rests: bool) -> None:
    with Service(TARGET) as service:
        stream = service.both.open(request_of([1, 2, 3], tokens))
        service.both.run([stream], draft_steps=0)
        (session,) = service.both.target._sessions.values()
        assert (session.judgement.rest.until > 0) is rests
        assert session.judgement.gain.seen == Tally()
