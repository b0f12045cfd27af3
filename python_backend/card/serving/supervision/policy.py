"""When to recover what: a pure decision from what was seen, without processes, clocks or I/O.

Losing the draft, or what takes the candidates of devices, costs speed and never an answer, so these
two are tried again for ever, with growing pauses. For every other model a recovery that fails twice
means a new server. So does the loss of streams that only the server could end, as those of `card`,
`postprocessing` and of what answers once are: Triton fails what it had queued for a dead stub at
one response a second, or never, and until then their clients hang. While nobody streams, these are
reloaded like the others, in a tenth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

DRAFT = "draft"
TARGET = "target"
CARD = "card"
POSTPROCESSING = "postprocessing"
ENSEMBLE = "ensemble"
PREPROCESSING = "preprocessing"
UNARY = ("ensemble_unary", "tensorrt_llm", "llmapi")
REMOTE = "remote"
EXPENDABLE = (DRAFT, REMOTE)
"""Models whose loss costs speed, and never an answer."""
HOLDS_STREAMS = (CARD, POSTPROCESSING, *UNARY)
"""Models whose loss leaves the clients of open streams hanging: `card` would wait for ever for one
of `UNARY` to take a response."""
STUBS = (CARD, PREPROCESSING, DRAFT, TARGET, POSTPROCESSING, *UNARY, REMOTE)
"""Models with a process of their own; each recovers by being unloaded and loaded."""
FRONTS = (ENSEMBLE, *UNARY)
"""Models that clients ask."""
MODELS = (*STUBS, ENSEMBLE)


def stubs_of(roles: Sequence[str]) -> tuple[str, ...]:
    """Those of `STUBS` that a service has whose pair has these roles."""
    return tuple(model for model in STUBS if model != DRAFT or DRAFT in roles)


ANSWERS_CLIENTS = (PREPROCESSING, POSTPROCESSING, *UNARY, REMOTE)
MOST_STOPPED_S = 0.3
"""How long one of these may be stopped. Triton gives up on a process that does not answer for a
second and uses the memory of its requests for others. If it then goes on, its answers are mixed up:
the end of one client's text in the stream of another. So it must be gone by then."""

ATTEMPTS = 2
"""Recoveries of one model that may fail in a row before the server restarts."""
PROBATION_S = 1.0
"""A recovered model that fails again sooner was not really recovered."""
LONGEST_PAUSE_S = 60.0
BLINK_S = 0.5
"""A longer pause between two looks means that this process did not run, and so perhaps nobody."""
SERVER_SILENCE_S = 15.0
"""A server that answers no health request for longer hangs."""
CLOSED_S = 1.0
"""A server that has refused connections for longer is ending, as on a SIGTERM from somebody else.
It takes its time over that, and leaves open streams without a word meanwhile."""
CARD_SILENCE_S = 15.0
"""A `card` that turns to nothing for longer waits for Triton to take a response. Only another
server helps: this one may answer no stream any more."""


def longest_silence_s(model: str, engine_timeout_s: float) -> float:
    """How long a model that beats may be silent before it counts as hanging."""
    return CARD_SILENCE_S if model == CARD else engine_timeout_s


class ProcessState(Enum):
    """What the kernel says about a process; a zombie is gone."""

    RUNNING = "running"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at a model's process.

    silence_s   seconds since its last heartbeat; 0 for a model that has none, or not yet
    starved_s   how many of them count for nothing, because it waited for a processor
    attached    whether it takes part in serving; only engines may not (yet)
    streams     open streams that are lost with it
    """

    process: ProcessState
    silence_s: float = 0.0
    starved_s: float = 0.0
    attached: bool = True
    streams: int = 0

    @property
    def unexplained_s(self) -> float:
        """The part of the silence that counts."""
        return self.silence_s - self.starved_s


@dataclass(frozen=True, slots=True)
class ServerSight:
    """One look at the server.

    silence_s  seconds since it last answered
    listens    whether it takes connections; one that hangs does
    """

    process: ProcessState
    silence_s: float = 0.0
    listens: bool = True


@dataclass(frozen=True, slots=True)
class Reload:
    """Kill what is left of the model's process, unload and load the model."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class RestartServer:
    """Kill everything, sweep, start again."""

    reason: str


Action = Reload | RestartServer


@dataclass(slots=True)
class _History:
    failures: int = 0
    recovered_s: float = -math.inf
    not_before_s: float = -math.inf
    recovering: bool = False
    since_s: dict[str, float] = field(default_factory=dict)
    """When each lasting condition (stopped, not attached) was first seen."""


class RecoveryPolicy:
    """Remembers past recoveries of one server run and decides on the next.

    All times are seconds on one monotonic clock that the caller reads.
    """

    def __init__(self, *, engine_timeout_s: float, load_timeout_s: float) -> None:
        self._engine_timeout_s = engine_timeout_s
        self._load_timeout_s = load_timeout_s
        self._looked_s = -math.inf
        self._lenient_until_s = -math.inf
        self.server_started()

    def server_started(self) -> None:
        """A new server runs: nothing that happened to the last one counts."""
        self._histories = {model: _History() for model in STUBS}
        self._server = _History()

    def decide(
        self, now_s: float, server: ServerSight, sights: Mapping[str, Sight]
    ) -> list[Action]:
        """What must be done now; a model that is being recovered is left alone."""
        self._blink(now_s)
        if reason := self._server_complaint(now_s, server, sights.get(CARD)):
            return [RestartServer(reason)]
        actions: list[Action] = []
        for model, sight in sights.items():
            history = self._histories[model]
            if history.recovering:
                continue
            reason = self._complaint(now_s, model, sight)
            if reason is None:
                if now_s - history.recovered_s > PROBATION_S:
                    history.failures = 0
            elif now_s >= history.not_before_s:
                action = self._respond(now_s, model, reason, sight.streams)
                if isinstance(action, RestartServer):
                    return [action]
                if action is not None:
                    actions.append(action)
        return actions

    def is_recovering(self, model: str) -> bool:
        return self._histories[model].recovering

    def recovered(self, now_s: float, model: str) -> None:
        """The reload that was decided has brought the model back."""
        history = self._histories[model]
        history.recovering = False
        history.recovered_s = now_s

    def recovery_failed(self, now_s: float, model: str, reason: str) -> Action | None:
        """The reload that was decided has not worked; what to do instead (None: pause first)."""
        self._histories[model].recovering = False
        return self._fail(now_s, model, f"its recovery failed: {reason}")

    def _blink(self, now_s: float) -> None:
        """Blame nobody for time past if we did not look, as after a suspended machine or container.

        Everybody gets the chance to speak again first; who is gone is still gone.
        """
        if now_s - self._looked_s > BLINK_S:
            self._lenient_until_s = now_s + self._engine_timeout_s
            for history in (self._server, *self._histories.values()):
                history.since_s.clear()
        self._looked_s = now_s

    def _respond(self, now_s: float, model: str, reason: str, streams: int) -> Action | None:
        history = self._histories[model]
        if streams:
            return RestartServer(f"{model}: {reason}, and {streams} open streams with it")
        if now_s - history.recovered_s <= PROBATION_S:
            return self._fail(now_s, model, f"it did not survive its recovery: {reason}")
        return self._reload(model, reason)

    def _fail(self, now_s: float, model: str, reason: str) -> Action | None:
        history = self._histories[model]
        history.failures += 1
        if history.failures < ATTEMPTS:
            return self._reload(model, reason)
        if model not in EXPENDABLE:
            return RestartServer(f"{model}: {reason}")
        history.not_before_s = now_s + min(LONGEST_PAUSE_S, 2.0 ** (history.failures - ATTEMPTS))
        return None

    def _reload(self, model: str, reason: str) -> Reload:
        history = self._histories[model]
        history.recovering = True
        history.since_s.clear()
        return Reload(model, reason)

    def _complaint(self, now_s: float, model: str, sight: Sight) -> str | None:
        history, most_stopped_s = self._histories[model], self._engine_timeout_s
        if model in ANSWERS_CLIENTS:
            most_stopped_s = min(most_stopped_s, MOST_STOPPED_S)
        if sight.process is ProcessState.GONE:
            return "its process is gone"
        stopped_s = lasted_s(
            history.since_s, "stopped", sight.process is ProcessState.STOPPED, now_s
        )
        if stopped_s > most_stopped_s:
            return f"its process has been stopped for {stopped_s:.1f} s"
        is_silent = model != CARD and sight.unexplained_s > self._engine_timeout_s
        if is_silent and now_s >= self._lenient_until_s:
            starved = f", starved for {sight.starved_s:.1f} s of them" if sight.starved_s else ""
            return f"no heartbeat for {sight.silence_s:.1f} s{starved}"
        detached_s = lasted_s(history.since_s, "detached", not sight.attached, now_s)
        if detached_s > self._load_timeout_s:
            return f"not attached for {detached_s:.0f} s"
        return None

    def _server_complaint(
        self, now_s: float, server: ServerSight, card: Sight | None
    ) -> str | None:
        if server.process is ProcessState.GONE:
            return "the server's process is gone"
        since_s, silence_s = self._server.since_s, server.silence_s
        stopped_s = lasted_s(since_s, "stopped", server.process is ProcessState.STOPPED, now_s)
        if stopped_s > self._engine_timeout_s:
            return f"the server's process has been stopped for {stopped_s:.1f} s"
        closed_s = lasted_s(since_s, "closed", not server.listens, now_s)
        if closed_s > CLOSED_S:
            return f"the server has taken no connection for {closed_s:.1f} s: it is ending"
        if silence_s > SERVER_SILENCE_S and now_s >= self._lenient_until_s:
            return f"the server has not answered for {silence_s:.1f} s"
        card_silence_s = 0.0 if card is None or self.is_recovering(CARD) else card.silence_s
        if card_silence_s > CARD_SILENCE_S and now_s >= self._lenient_until_s:
            return f"card has turned to nothing for {card_silence_s:.1f} s"
        return None


def lasted_s(since_s: dict[str, float], condition: str, holds: bool, now_s: float) -> float:
    """Seconds for which a condition has been seen to hold without a break; `since_s` remembers."""
    if not holds:
        since_s.pop(condition, None)
        return 0.0
    return now_s - since_s.setdefault(condition, now_s)
