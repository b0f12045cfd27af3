"""The target's side in the Triton process: sessions become requests, results become commits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from scripted_runtime import RequestError, ScriptedOutput, ScriptedRuntime
from tensorrt_double import GEOMETRY, Cache, EngineRequest

from card.cache import CardSlot, Finish, Pool
from card.engines.tensorrt_llm.tasks import EngineStalledError
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

    def open(self, *, hook: bool, **config: object) -> tuple[CardSlot, ScriptedOutput]:
        """A session taken up by the loop; `hook`: with a hook that is attached already."""
        if hook:
            self.lookup.answer([])
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


def test_the_hook_publishes_while_it_runs_and_the_rest_comes_at_the_end(target: Target) -> None:
    slot, output = target.open(hook=True)
    target.cache.draft(slot, len(PROMPT), [8, 9, 10, 11])
    target.runtime.give(output, [8])
    target.runtime.settle()
    assert target.cache.output(slot) == [], "a session has one writer at a time"
    target.hook(output, [8])
    target.hook(output, [8, 9, 10, 20])
    target.runtime.give(output, [9, 10, 20])
    target.runtime.settle()
    assert target.cache.output(slot) == [8, 9, 10, 20]
    target.runtime.give(output, [21, END], "stop")
    target.runtime.settle()
    assert target.cache.output(slot) == [8, 9, 10, 20, 21, END]
    assert slot.finish(slot.session_id) is Finish.END_ID
    assert slot.is_accepted(0, 6).tolist() == [False, True, True, False, False, False]


def test_what_the_last_pass_accepted_is_counted(target: Target) -> None:
    slot, output = target.open(hook=True, max_tokens=4)
    target.cache.draft(slot, len(PROMPT), [8, 9, 10, 11])
    assert target.hook(output, [8]) == [9, 10]
    target.runtime.give(output, [8, 9, 10, 11], "length")
    target.runtime.settle()
    assert target.cache.output(slot) == [8, 9, 10, 11]
    assert slot.is_accepted(0, 4).tolist() == [False, True, True, False]
    assert slot.finish(slot.session_id) is Finish.LENGTH
    assert slot.counters().accepted == 2


def test_without_a_hook_every_response_is_published_at_once(target: Target) -> None:
    slot, output = target.open(hook=False)
    target.runtime.give(output, [8])
    target.runtime.settle()
    assert target.cache.output(slot) == [8]
    assert target.hook(output, [8, 9]) == [], "a request is the hook's from its start or never"
    target.runtime.give(output, [9, 10])
    target.runtime.settle()
    assert target.cache.output(slot) == [8, 9, 10]


def test_log_probabilities_are_published_with_their_tokens(target: Target) -> None:
    slot, output = target.open(hook=True, log_probabilities=True)
    assert output.sampling.logprobs == 1
    target.hook(output, [8])
    target.runtime.give(output, [8], likelihoods=[{8: -0.5}])
    target.runtime.give(output, [9], "length", likelihoods=[{9: -0.25, 8: -1.0}])
    target.runtime.settle()
    assert target.cache.output(slot) == [8, 9]
    assert slot.log_probabilities(0, 2).tolist() == [-0.5, -0.25]


def test_of_two_equally_likely_tokens_the_runtime_may_list_the_other(target: Target) -> None:
    slot, output = target.open(hook=True, log_probabilities=True)
    target.runtime.give(output, [8], "length", likelihoods=[{9: -0.75}])
    target.runtime.settle()
    assert slot.log_probabilities(0, 1).tolist() == [-0.75]


def test_an_end_token_that_the_runtime_cuts_off_is_committed_all_the_same(target: Target) -> None:
    slot, output = target.open(hook=True)
    target.runtime.give(output, [8], "stop")
    target.runtime.settle()
    assert target.cache.output(slot) == [8, END]
    assert slot.finish(slot.session_id) is Finish.END_ID


def test_a_session_that_a_dead_target_left_goes_on_behind_its_commits(
    cache: Cache, target: Target
) -> None:
    slot = cache.open(PROMPT, max_tokens=9, min_tokens=5)
    cache.pool.target_slot(0).commit([8, 9], [False, False], [0.0, 0.0], Finish.RUNNING)
    target.lookup.answer([])
    target.runtime.until(lambda: len(target.runtime.requests) > 1, target.loop.step)
    target.runtime.settle()
    output = target.runtime.requests[-1]
    assert output.prompt == [*PROMPT, 8, 9]
    assert output.sampling.max_tokens == 7
    assert output.sampling.min_tokens == 3, "to the runtime, what is committed is prompt"
    target.runtime.give(output, [10, 11], "length")
    target.runtime.settle()
    assert cache.output(slot) == [8, 9, 10, 11]


def test_a_closed_session_is_aborted_and_released_when_the_engine_is_done(target: Target) -> None:
    slot, output = target.open(hook=True)
    output.answers_abort = False
    slot.close()
    target.runtime.until(lambda: output.was_aborted, target.loop.step)
    target.runtime.settle()
    assert not slot.reclaim(), "until the engine is done the hook may write"
    target.runtime.give(output, [], "cancelled")
    target.runtime.until(lambda: slot.reclaim(), target.runtime.settle)
    assert target.cache.output(slot) == []
    assert target.hook(output, [8]) == []


def test_a_finished_session_is_released_once_it_is_closed(target: Target) -> None:
    slot, output = target.open(hook=True)
    target.runtime.give(output, [8], "length")
    target.runtime.settle()
    assert not slot.reclaim()
    slot.close()
    target.runtime.until(lambda: slot.reclaim(), target.loop.step)
    assert not output.was_aborted


def test_one_failed_request_fails_its_session_alone(target: Target) -> None:
    slot, output = target.open(hook=True)
    other, answered = target.open(hook=True, index=1)
    target.runtime.fail(output, RequestError("too long"))
    target.runtime.give(answered, [8], "length")
    target.runtime.settle()
    target.loop.step()
    assert slot.finish(slot.session_id) is Finish.FAILED
    assert other.finish(other.session_id) is Finish.LENGTH


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_a_request_that_ends_without_a_text_fails_its_session(target: Target, reason: str) -> None:
    slot, output = target.open(hook=True)
    target.runtime.give(output, [], reason)
    target.runtime.settle()
    assert slot.finish(slot.session_id) is Finish.FAILED


def test_a_dead_engine_ends_the_loop(target: Target) -> None:
    slot, output = target.open(hook=True)
    target.runtime.fail(output, RuntimeError("the worker died"))
    target.runtime.settle()
    with pytest.raises(RuntimeError, match="the worker died"):
        target.loop.step()
    assert slot.finish(slot.session_id) is Finish.RUNNING, "another process goes on with it"


def test_an_engine_that_gives_no_token_ends_the_loop(
    cache: Cache, runtime: ScriptedRuntime
) -> None:
    stalled = Target(cache, runtime, stall_timeout_s=0.01)
    with pytest.raises(EngineStalledError, match="no token from the engine"):
        runtime.until(lambda: False, stalled.loop.step)


def test_an_idle_engine_that_lost_a_worker_is_asked_for_a_token_and_its_error_is_raised(
    target: Target, runtime: ScriptedRuntime
) -> None:
    runtime.give(target.first_request, [1, 2, 3], "length")
    runtime.settle()
    target.loop.step()
    assert runtime.requests == [target.first_request]
    runtime.loses_worker = True
    target.loop.step()
    _, asked = runtime.requests
    runtime.fail(asked, RuntimeError("the worker process is gone"))
    runtime.settle()
    with pytest.raises(RuntimeError, match="the worker process is gone"):
        target.loop.step()


def test_another_pool_ends_every_request(target: Target) -> None:
    _, output = target.open(hook=True)
    target.loop.abandon()
    assert output.was_aborted
