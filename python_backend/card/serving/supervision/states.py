"""The supervisor as a state machine: its reactions to events of the service and of models.

`SERVICE` has a row for each event that ends a state of the service, `MODEL` one for each event that
changes the state of one model's recovery. An event without a row changes nothing. Nothing here
touches a process or reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Service(Enum):
    """The state of the service. A probe sees `SERVING` as `ready`, `degraded` or `unready`."""

    READING = auto()  # a child process reads the models' files; the health port answers
    STARTING = auto()  # Triton loads the models
    SERVING = auto()  # the supervisor watches all processes and repairs
    DRAINING = auto()  # new requests are refused, open ones end
    STOPPED = auto()  # no process and no file is left


class Happening(Enum):
    """An event that ends a state of the service."""

    FILES_FIT = auto()
    COMPLETE = auto()  # all models serve
    START_FAILED = auto()  # and another attempt is allowed; else the supervisor ends
    SERVER_LOST = auto()  # Triton is gone or hangs, or a model needs another server
    STOP = auto()  # SIGTERM, SIGINT, SIGHUP
    DRAINED = auto()  # nothing is open, or the limit is reached


SERVICE: Mapping[tuple[Service, Happening], Service] = {
    (Service.READING, Happening.FILES_FIT): Service.STARTING,
    (Service.READING, Happening.STOP): Service.STOPPED,
    (Service.STARTING, Happening.COMPLETE): Service.SERVING,
    (Service.STARTING, Happening.START_FAILED): Service.STARTING,
    (Service.STARTING, Happening.STOP): Service.STOPPED,
    (Service.SERVING, Happening.SERVER_LOST): Service.STARTING,
    (Service.SERVING, Happening.STOP): Service.DRAINING,
    (Service.DRAINING, Happening.SERVER_LOST): Service.STOPPED,
    (Service.DRAINING, Happening.STOP): Service.STOPPED,
    (Service.DRAINING, Happening.DRAINED): Service.STOPPED,
}


class Repair(Enum):
    """The state of one model's recovery."""

    WELL = auto()
    RELOADING = auto()
    PROBATION = auto()  # reloaded a moment ago
    RELOADING_AGAIN = auto()  # the first reload did not bring it back
    LAST_PROBATION = auto()
    PAUSED = auto()  # an expendable model, tried again later
    AWAITING_CALM = auto()  # an expendable model that needs a new server, once no stream is open


class Event(Enum):
    """An event of one model."""

    LOST = auto()  # its process is gone, stopped, silent or does not take part
    LOST_WITH_STREAMS = auto()  # and only the server's end tells the clients of open streams
    BACK = auto()  # a reload ended, and the model takes part
    FAILED = auto()  # a reload ended without that
    STUCK = auto()  # Triton waits for a dead process: only a new server loads this model again
    STEADY = auto()  # seen well for `PROBATION_S`
    CALM = auto()  # no stream is open


class Action(Enum):
    """The supervisor's reaction to an event."""

    NOTHING = auto()
    RELOAD = auto()  # kill what is left of the process, unload and load the model
    RESTART_SERVER = auto()  # kill everything, remove what is left, start again


MODEL: Mapping[tuple[Repair, Event], tuple[Repair, Action]] = {
    (Repair.WELL, Event.LOST): (Repair.RELOADING, Action.RELOAD),
    (Repair.WELL, Event.LOST_WITH_STREAMS): (Repair.WELL, Action.RESTART_SERVER),
    (Repair.RELOADING, Event.BACK): (Repair.PROBATION, Action.NOTHING),
    (Repair.RELOADING, Event.FAILED): (Repair.RELOADING_AGAIN, Action.RELOAD),
    (Repair.RELOADING, Event.STUCK): (Repair.WELL, Action.RESTART_SERVER),
    (Repair.PROBATION, Event.STEADY): (Repair.WELL, Action.NOTHING),
    (Repair.PROBATION, Event.LOST): (Repair.RELOADING_AGAIN, Action.RELOAD),
    (Repair.PROBATION, Event.LOST_WITH_STREAMS): (Repair.WELL, Action.RESTART_SERVER),
    (Repair.RELOADING_AGAIN, Event.BACK): (Repair.LAST_PROBATION, Action.NOTHING),
    (Repair.RELOADING_AGAIN, Event.FAILED): (Repair.WELL, Action.RESTART_SERVER),
    (Repair.RELOADING_AGAIN, Event.STUCK): (Repair.WELL, Action.RESTART_SERVER),
    (Repair.LAST_PROBATION, Event.STEADY): (Repair.WELL, Action.NOTHING),
    (Repair.LAST_PROBATION, Event.LOST): (Repair.WELL, Action.RESTART_SERVER),
    (Repair.LAST_PROBATION, Event.LOST_WITH_STREAMS): (Repair.WELL, Action.RESTART_SERVER),
}
EXPENDABLE_MODEL: Mapping[tuple[Repair, Event], tuple[Repair, Action]] = {
    **MODEL,
    (Repair.RELOADING, Event.STUCK): (Repair.AWAITING_CALM, Action.NOTHING),
    (Repair.RELOADING_AGAIN, Event.STUCK): (Repair.AWAITING_CALM, Action.NOTHING),
    (Repair.AWAITING_CALM, Event.CALM): (Repair.WELL, Action.RESTART_SERVER),
    (Repair.RELOADING_AGAIN, Event.FAILED): (Repair.PAUSED, Action.NOTHING),
    (Repair.LAST_PROBATION, Event.LOST): (Repair.PAUSED, Action.NOTHING),
    (Repair.PAUSED, Event.LOST): (Repair.RELOADING_AGAIN, Action.RELOAD),  # after the pause
    (Repair.PAUSED, Event.STEADY): (Repair.WELL, Action.NOTHING),
}
"""The rows of an expendable model: its loss costs only speed."""

PROBATION_S = 1.0
"""A model that is lost again within this time counts as not recovered."""
LONGEST_PAUSE_S = 60.0
"""Longest pause; pauses begin with a second and double."""

DRAFT, TARGET, CARD, PREPROCESSING = "draft", "target", "card", "preprocessing"
POSTPROCESSING, REMOTE, ENSEMBLE = "postprocessing", "remote", "ensemble"
UNARY = ("ensemble_unary", "tensorrt_llm", "llmapi")
STUBS = (CARD, PREPROCESSING, DRAFT, TARGET, POSTPROCESSING, *UNARY, REMOTE)
"""Models with a process of their own."""
FRONTS = (ENSEMBLE, *UNARY)
"""Models that clients call."""
EXPENDABLE = (DRAFT, REMOTE)
HOLDS_STREAMS = (CARD, POSTPROCESSING, *UNARY)
"""Models that leave clients of open streams without an answer when they are lost: Triton fails the
requests queued for a dead process at one a second, or never, and `card` waits forever for a model
of `UNARY`."""
ANSWERS_CLIENTS = (PREPROCESSING, POSTPROCESSING, *UNARY, REMOTE)


def stubs_of(roles: Sequence[str]) -> tuple[str, ...]:
    """The part of `STUBS` that a service with these roles has."""
    return tuple(model for model in STUBS if model != DRAFT or DRAFT in roles)


@dataclass(slots=True)
class Recovery:
    """The state of one model. Times are seconds on the caller's monotonic clock."""

    model: str
    state: Repair = Repair.WELL
    _since_s: float = -math.inf
    _pauses: int = 0

    @property
    def is_reloading(self) -> bool:
        return self.state in (Repair.RELOADING, Repair.RELOADING_AGAIN, Repair.AWAITING_CALM)

    def meet(self, event: Event, now_s: float) -> Action:
        """Take the row of the table for this event."""
        table = EXPENDABLE_MODEL if self.model in EXPENDABLE else MODEL
        pause_s = min(LONGEST_PAUSE_S, 2.0 ** (self._pauses - 1))
        if self.state is Repair.PAUSED and now_s - self._since_s < pause_s:
            return Action.NOTHING
        state, action = table.get((self.state, event), (self.state, Action.NOTHING))
        if state is not self.state:
            self.state, self._since_s = state, now_s
        if state is Repair.PAUSED:
            self._pauses += 1
        elif state is Repair.WELL:
            self._pauses = 0
        return action

    def see(self, lost: bool, streams: int, now_s: float) -> Action:
        """Handle one observation of the model: whether it is lost, and the number of open streams
        that are lost with it."""
        if now_s - self._since_s > PROBATION_S and (
            not lost or self.state in (Repair.PROBATION, Repair.LAST_PROBATION)
        ):
            self.meet(Event.STEADY, now_s)
        if not lost:
            return Action.NOTHING
        return self.meet(Event.LOST_WITH_STREAMS if streams else Event.LOST, now_s)
