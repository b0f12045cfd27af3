"""When the supervisor recovers what: judged from fake sights on a fake clock."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from card.serving.supervision.policy import (
    ANSWERS_CLIENTS,
    ATTEMPTS,
    CARD_SILENCE_S,
    CLOSED_S,
    EXPENDABLE,
    LONGEST_PAUSE_S,
    MOST_STOPPED_S,
    PROBATION_S,
    SERVER_SILENCE_S,
    STUBS,
    Action,
    ProcessState,
    RecoveryPolicy,
    Reload,
    RestartServer,
    ServerSight,
    Sight,
)
from card.serving.supervision.recovery import LostRequestsError, StuckLoadError
from card.serving.supervision.reloads import Reloads

ENGINE_TIMEOUT_S = 2.0
LOOK_S = 0.1
LOAD_TIMEOUT_S = 100.0
SERVER_WELL = ServerSight(ProcessState.RUNNING)
WELL = Sight(ProcessState.RUNNING)
GONE = Sight(ProcessState.GONE)
STOPPED = Sight(ProcessState.STOPPED)


class Watch:
    """A policy that looks around on a clock of its own."""

    def __init__(self) -> None:
        self.policy = RecoveryPolicy(
            engine_timeout_s=ENGINE_TIMEOUT_S, load_timeout_s=LOAD_TIMEOUT_S
        )
        self.now_s = 1000.0

    def look(
        self,
        after_s: float = 0.1,
        server: ServerSight = SERVER_WELL,
        sights: Mapping[str, Sight] = MappingProxyType({}),
        **more: Sight,
    ) -> list[Action]:
        """Look `after_s` from the last time, without a blink; all is well but what is said."""
        seen = dict.fromkeys(STUBS, WELL) | {**sights, **more}
        end_s = self.now_s + after_s
        while True:
            self.now_s = min(self.now_s + LOOK_S, end_s)
            actions = self.policy.decide(self.now_s, server, seen)
            if actions or self.now_s == end_s:
                return actions

    def sleep(self, for_s: float) -> None:
        """Nobody runs for so long, this supervisor included."""
        self.now_s += for_s

    def recover(self, model: str) -> None:
        self.policy.recovered(self.now_s, model)

    def fail(self, model: str) -> Action | None:
        return self.policy.recovery_failed(self.now_s, model, "no luck")


@pytest.fixture
def watch() -> Watch:
    """One that has been looking for a while."""
    watch = Watch()
    assert watch.look(after_s=2 * ENGINE_TIMEOUT_S) == []
    return watch


def models(actions: list[Action]) -> list[str]:
    assert all(isinstance(action, Reload) for action in actions), actions
    return [action.model for action in actions if isinstance(action, Reload)]


def silent_for(silence_s: float) -> ServerSight:
    return ServerSight(ProcessState.RUNNING, silence_s)


def restarts(actions: list[Action]) -> bool:
    return [type(action) for action in actions] == [RestartServer]


@pytest.mark.parametrize("model", STUBS)
def test_a_dead_model_is_reloaded_at_once_and_once(watch: Watch, model: str) -> None:
    other = "draft" if model != "draft" else "target"
    assert set(models(watch.look(sights={model: GONE, other: GONE}))) == {model, other}
    assert watch.look(sights={model: GONE, other: GONE}) == []
    assert watch.policy.is_recovering(model)
    watch.recover(other)
    watch.recover(model)
    assert watch.look() == []
    assert not watch.policy.is_recovering(model)


def silent(silence_s: float) -> Sight:
    return Sight(ProcessState.RUNNING, silence_s=silence_s)


BORNE: list[tuple[str, Sight, float]] = [
    *((model, STOPPED, ENGINE_TIMEOUT_S) for model in sorted(set(STUBS) - set(ANSWERS_CLIENTS))),
    # Later Triton would give up on it, and answer one client with another's text.
    *((model, STOPPED, MOST_STOPPED_S - 0.05) for model in ("preprocessing", "postprocessing")),
    ("target", Sight(ProcessState.RUNNING, attached=False), LOAD_TIMEOUT_S),
]


@pytest.mark.parametrize(("model", "sight", "limit_s"), BORNE)
def test_what_is_borne_for_a_while_is_reloaded_after_it_and_not_before(
    watch: Watch, model: str, sight: Sight, limit_s: float
) -> None:
    sights = {model: sight}
    assert watch.look(sights=sights) == []
    assert watch.look(after_s=limit_s, sights=sights) == []
    assert models(watch.look(sights=sights)) == [model]
    watch.recover(model)
    assert watch.look(sights=sights) == [], "a new process has a time of its own"


def test_a_model_that_goes_on_in_time_is_left_alone(watch: Watch) -> None:
    assert watch.look(card=STOPPED) == []
    assert watch.look(after_s=ENGINE_TIMEOUT_S - 0.2) == []
    assert watch.look(card=STOPPED) == []
    assert watch.look(after_s=ENGINE_TIMEOUT_S - 0.2, card=STOPPED) == []


@pytest.mark.parametrize("engine", ["draft", "target"])
def test_a_silent_engine_is_reloaded(watch: Watch, engine: str) -> None:
    assert watch.look(sights={engine: silent(ENGINE_TIMEOUT_S)}) == []
    assert models(watch.look(sights={engine: silent(ENGINE_TIMEOUT_S + 0.1)})) == [engine]


def test_an_engine_that_waited_for_a_processor_is_left_alone(watch: Watch) -> None:
    starved = Sight(ProcessState.RUNNING, silence_s=9.0, starved_s=9.0 - ENGINE_TIMEOUT_S)
    assert watch.look(after_s=60.0, target=starved) == []
    (action,) = watch.look(target=replace(starved, starved_s=6.5))
    assert action == Reload("target", "no heartbeat for 9.0 s, starved for 6.5 s of them")


@pytest.mark.parametrize("state", [ProcessState.GONE, ProcessState.STOPPED])
@pytest.mark.parametrize("model", ["card", "postprocessing", "tensorrt_llm"])
def test_open_streams_that_only_the_server_can_end_restart_it(
    watch: Watch, model: str, state: ProcessState
) -> None:
    """And a model that nobody streams through is only reloaded."""
    streams = {model: Sight(state, streams=2)}
    assert restarts(
        watch.look(sights=streams) or watch.look(ENGINE_TIMEOUT_S + 0.1, sights=streams)
    )
    assert models(watch.look(sights={model: GONE})) == [model]


def test_a_dead_server_is_restarted_whatever_else_is_wrong(watch: Watch) -> None:
    for server in (ServerSight(ProcessState.GONE), silent_for(SERVER_SILENCE_S + 0.1)):
        assert restarts(watch.look(server=server, draft=GONE, target=GONE))
    assert watch.look(server=silent_for(SERVER_SILENCE_S)) == []


@pytest.mark.parametrize(
    ("lame", "limit_s"),
    [
        (ServerSight(ProcessState.STOPPED), ENGINE_TIMEOUT_S),
        (ServerSight(ProcessState.RUNNING, silence_s=0.3, listens=False), CLOSED_S),
    ],
    ids=["stopped", "takes no connection"],
)
def test_a_lame_server_is_restarted_unless_it_was_a_moment(
    watch: Watch, lame: ServerSight, limit_s: float
) -> None:
    for _ in range(2):
        assert watch.look(server=lame) == []
        assert watch.look(after_s=limit_s, server=lame) == []
        assert watch.look() == []
    watch.look(server=lame)
    assert restarts(watch.look(after_s=limit_s + 0.2, server=lame))


def test_a_card_that_turns_to_nothing_needs_another_server(watch: Watch) -> None:
    assert watch.look(card=silent(CARD_SILENCE_S)) == []
    watch.sleep(60.0)
    hung = silent(CARD_SILENCE_S + 0.1)
    assert watch.look(card=hung) == [], "it may speak again first"
    assert restarts(watch.look(after_s=ENGINE_TIMEOUT_S + 0.1, card=hung))
    watch.policy.server_started()
    watch.look(card=GONE)
    assert watch.look(card=silent(60.0)) == [], "it is being reloaded"


@pytest.mark.parametrize("model", sorted(set(STUBS) - set(EXPENDABLE)))
def test_a_recovery_that_fails_twice_restarts_the_server(watch: Watch, model: str) -> None:
    watch.look(sights={model: GONE})
    second = watch.fail(model)
    assert second is not None
    assert models([second]) == [model]
    third = watch.fail(model)
    assert third is not None
    assert restarts([third])


def test_a_model_that_dies_again_at_once_was_not_recovered(watch: Watch) -> None:
    watch.look(target=GONE)
    watch.recover("target")
    assert models(watch.look(after_s=PROBATION_S / 2, target=GONE)) == ["target"]
    watch.recover("target")
    assert watch.look(after_s=PROBATION_S / 2) == [], "well for a moment is not well"
    assert restarts(watch.look(after_s=PROBATION_S / 4, target=GONE))


def test_a_model_that_survives_its_probation_starts_afresh(watch: Watch) -> None:
    for _ in range(5):
        assert models(watch.look(target=GONE)) == ["target"]
        watch.recover("target")
        assert watch.look(after_s=PROBATION_S + 0.1) == []


@pytest.mark.parametrize("model", EXPENDABLE)
def test_losing_what_drafts_never_restarts_the_server(watch: Watch, model: str) -> None:
    """Its clients lose speed only; it is tried again with pauses that grow to a limit."""
    pauses_s = []
    watch.look(sights={model: GONE})
    for _ in range(10):
        began_s = watch.now_s
        action = watch.fail(model)
        actions = [] if action is None else [action]
        while not actions:
            actions = watch.look(sights={model: GONE})
        assert models(actions) == [model]
        pauses_s.append(watch.now_s - began_s)
    assert pauses_s[: ATTEMPTS - 1] == [0.0] * (ATTEMPTS - 1)
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] == pytest.approx(LONGEST_PAUSE_S, abs=0.2)


def test_a_new_server_is_judged_without_the_past_of_the_old_one(watch: Watch) -> None:
    watch.look(target=GONE)
    watch.fail("target")
    watch.policy.server_started()
    assert not watch.policy.is_recovering("target")
    assert models(watch.look(target=GONE)) == ["target"]


@pytest.mark.parametrize(
    "sight", [STOPPED, Sight(ProcessState.RUNNING, silence_s=60.0)], ids=["stopped", "silent"]
)
def test_after_a_suspended_machine_everybody_gets_time_to_speak(watch: Watch, sight: Sight) -> None:
    assert watch.look(card=STOPPED) == []
    watch.sleep(60.0)
    assert watch.look(server=silent_for(60.0), target=sight, card=STOPPED) == []
    assert watch.look(after_s=ENGINE_TIMEOUT_S / 2) == []
    assert watch.look(after_s=ENGINE_TIMEOUT_S) == []
    assert models(watch.look(after_s=2 * ENGINE_TIMEOUT_S, target=sight)) == ["target"]
    watch.sleep(60.0)
    assert models(watch.look(draft=GONE)) == ["draft"], "who died meanwhile is gone"


class ReloadedService:
    """One whose clients have a stream open."""

    def __init__(self) -> None:
        self.server_sight = SERVER_WELL
        self.open_slots = 1
        self.fate: Exception | None = None
        self.may_end = threading.Event()

    def reload(self, model: str) -> None:
        assert self.may_end.wait(60)
        if self.fate is not None:
            raise self.fate


class Healing:
    """The reloads of a service, looked at until one has ended."""

    def __init__(self) -> None:
        policy = RecoveryPolicy(engine_timeout_s=ENGINE_TIMEOUT_S, load_timeout_s=LOAD_TIMEOUT_S)
        self.service = ReloadedService()
        self.reloads = Reloads(policy)

    def heal(self, **sights: Sight) -> str | None:
        return self.reloads.heal(self.service, sights)  # type: ignore[arg-type]

    def end(self, fate: Exception | None = None) -> None:
        """Let the reload that was begun end."""
        self.service.fate = fate
        self.service.may_end.set()
        self.reloads.close()


def test_what_triton_can_load_no_more_needs_a_new_server_and_a_draft_waits_for_open_streams() -> (
    None
):
    for model in ("draft", "target"):
        healing = Healing()
        assert healing.heal(**{model: GONE}) is None
        healing.end(StuckLoadError("its process did not survive its loading"))
        if model == "draft":
            assert healing.heal(draft=GONE) is None
            healing.service.open_slots = 0
        assert str(healing.heal(**{model: GONE})).startswith(f"{model}: ")


def test_a_reload_of_a_server_that_is_gone_matters_no_more() -> None:
    healing = Healing()
    assert healing.heal(draft=GONE) is None
    healing.reloads.forget()
    healing.end(LostRequestsError("requests were open in its process"))
    assert healing.heal() is None
