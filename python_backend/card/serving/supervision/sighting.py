"""What the supervisor saw at its last look around."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from card.serving.supervision.policy import EXPENDABLE

STATES = ("starting", "ready", "degraded", "unready", "draining")


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The phase that the load of a model is in, and for how long."""

    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """One model: `well`, or else what is known to be wrong. `loading` is None when its load is
    done, of which a part may go on while it serves."""

    state: str
    pid: int | None = None
    reloads: int = 0
    loading: LoadProgress | None = None


@dataclass(frozen=True, slots=True)
class GuardHealth:
    """The guard: `well`, or else what is known to be wrong."""

    state: str
    pid: int


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """The whole service; `state` is one of `STATES`. `guard` is None where none stands in front."""

    state: str
    server_pid: int | None = None
    server_restarts: int = 0
    models: dict[str, ModelHealth] = field(default_factory=dict)
    guard: GuardHealth | None = None
    guard_restarts: int = 0

    @property
    def ready(self) -> bool:
        return self.state in ("ready", "degraded")


def state_of(answers: bool, models: Mapping[str, ModelHealth], guard: GuardHealth | None) -> str:
    """The state of a service between its start and its end, by what is seen of its parts.

    answers  whether the server runs and says that the ensemble is ready
    """
    lame = [model for model, health in models.items() if health.state != "well"]
    reached = answers and (guard is None or guard.state == "well")
    if not reached or any(model not in EXPENDABLE for model in lame):
        return "unready"
    return "degraded" if lame else "ready"
