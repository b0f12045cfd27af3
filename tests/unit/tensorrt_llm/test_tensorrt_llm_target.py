"""The target's side in the Triton process: sessions become requests, results become commits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from scripted_runtime import RequestError, ScriptedOutput, ScriptedRuntime
from tensorrt_double import GEOMETRY, Cache, EngineRequest

from card.cache import CardSlot, Finish, Pool
from card.engines.tensorrt_llm.runtime import EngineStalledError
from card.settings import Settings
from card.tensorrt_llm.lookup import CandidateLookup
from card.tensorrt_llm.target import TensorRTTargetLoop

PROMPT = [5, 6, 7]
END = 49


@pytest.fixture
def runtime() -> Iterator[ScriptedRuntime]:
    made = ScriptedRuntime()
    yield made
    made.shutdown()
    assert made.was_shut_down


class Target:
    """The loop under test on its own view of the pool, and the hook in the place of a worker."""

    def __init__(
        self, cache: Cache, runtime: ScriptedRuntime, stall_timeout_s: float = 600
    ) -> None:
        self.cache = cache
        self.runtime = runtime
        pool = Pool.open(cache.directory, os.getpid(), GEOMETRY)
        assert pool is not None
        settings = Settings.model_validate(
            {"target": {"tensorrt_llm": {"stall_timeout_s": stall_timeout_s}}}
        )
        self.loop = TensorRTTargetLoop(runtime, pool, settings)
        runtime.settle()
        self.first_request = runtime.requests[-1]
        self.lookup = CandidateLookup(cache.settings)

    def open(self, **config: object) -> tuple[CardSlot, ScriptedOutput]:
        """A session taken up by the loop."""
        known = len(self.runtime.requests)
        slot = self.cache.open(PROMPT, **config)  # type: ignore[arg-type]
        self.runtime.until(lambda: len(self.runtime.requests) > known, self.loop.step)
        self.runtime.settle()
        return slot, self.runtime.requests[-1]

    def hook(self, output: ScriptedOutput, tokens: list[int]) -> list[int]:
        """A pass of the worker: the hook sees the request with these output tokens."""
        (answer,) = self.lookup.answer([EngineRequest(output.request_id, [*PROMPT, *tokens])])
        return answer


@pytest.fixture
def target(cache: Cache, runtime: ScriptedRuntime) -> Target:
    return Target(cache, runtime)


def test_tokens_of_a_pass_are_committed_with_the_candidates_that_the_hook_gave(
    target: Target,
) -> None:
    slot, output = target.open()
    target.cache.draft(slot, len(PROMPT), [8, 9, 10, 11])
    target.runtime.give(output, [8])
    target.runtime.settle()
    assert target.cache.output(slot) == [8]
    assert target.hook(output, [8]) == [9, 10, 11]
    target.runtime.give(output, [9, 10, 20])
    target.runtime.settle()
    assert target.cache.output(slot) == [8, 9, 10, 20]
    assert slot.finish(slot.session_id) is Finish.RUNNING
    target.runtime.give(output, [], "stop")  # an end token that the runtime cuts off
    target.runtime.settle()
    assert target.cache.output(slot) == [8, 9, 10, 20, END]
    assert slot.is_accepted(0, 5).tolist() == [False, True, True, False, False]
    assert slot.finish(slot.session_id) is Finish.END_ID
    counters = slot.counters()
    assert (counters.steps, counters.accepted, counters.drafted) == (3, 2, 3)
    assert (counters.queries, counters.hits, counters.corrections) == (1, 1, 1)


def test_log_probabilities_are_published_when_they_are_wanted(target: Target) -> None:
    """Of two equally likely tokens the runtime may have listed the other."""
    slot, output = target.open(log_probabilities=True)
    target.runtime.give(output, [8], likelihoods=[{8: -0.5}])
    target.runtime.give(output, [9], "length", likelihoods=[{7: -0.25}])
    target.runtime.settle()
    assert target.cache.output(slot) == [8, 9]
    assert slot.log_probabilities(0, 2).tolist() == [-0.5, -0.25]


def test_session_goes_on_behind_its_commits_when_a_target_died(
    cache: Cache, target: Target
) -> None:
    slot = cache.open(PROMPT, max_tokens=9, min_tokens=5)
    cache.pool.target_slot(0).commit([8, 9], [False, False], [0.0, 0.0], Finish.RUNNING)
    target.runtime.until(lambda: len(target.runtime.requests) > 1, target.loop.step)
    target.runtime.settle()
    output = target.runtime.requests[-1]
    assert output.prompt == [*PROMPT, 8, 9]
    assert (output.sampling.max_tokens, output.sampling.min_tokens) == (7, 3)
    target.runtime.give(output, [10, 11], "length")
    target.runtime.settle()
    assert cache.output(slot) == [8, 9, 10, 11]


def test_slot_is_released_when_the_engine_is_done_with_an_aborted_request(target: Target) -> None:
    slot, output = target.open()
    output.answers_abort = False
    slot.close()
    target.runtime.until(lambda: output.was_aborted, target.loop.step)
    target.runtime.settle()
    assert not slot.reclaim(), "until the engine is done the hook may read it"
    target.runtime.give(output, [], "cancelled")
    target.runtime.until(lambda: slot.reclaim(), target.runtime.settle)
    assert target.hook(output, [8]) == []


def test_session_fails_alone_when_its_request_fails(target: Target) -> None:
    slot, output = target.open()
    other, answered = target.open(index=1)
    third, unanswered = target.open(index=2)
    target.runtime.fail(output, RequestError("too long"))
    target.runtime.give(answered, [8], "length")
    target.runtime.give(unanswered, [], "timeout")
    target.runtime.settle()
    target.loop.step()
    assert slot.finish(slot.session_id) is third.finish(third.session_id) is Finish.FAILED
    assert other.finish(other.session_id) is Finish.LENGTH


def test_loop_raises_and_leaves_sessions_running_when_the_engine_died(target: Target) -> None:
    slot, output = target.open()
    target.runtime.fail(output, RuntimeError("the worker died"))
    target.runtime.settle()
    with pytest.raises(RuntimeError, match="the worker died"):
        target.loop.step()
    assert slot.finish(slot.session_id) is Finish.RUNNING, "another process goes on with it"


def test_loop_raises_when_the_engine_gives_no_token(cache: Cache, runtime: ScriptedRuntime) -> None:
    stalled = Target(cache, runtime, stall_timeout_s=0.01)
    with pytest.raises(EngineStalledError, match="no token from the engine"):
        runtime.until(lambda: False, stalled.loop.step)
