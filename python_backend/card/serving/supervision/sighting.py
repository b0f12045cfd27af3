"""What the supervisor saw at its last look around."""

from __future__ import annotations

from dataclasses import dataclass, field

STATES = ("starting", "ready", "degraded", "unready", "draining")


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """One model: `well`, or else what is known to be wrong."""

    state: str
    pid: int | None = None
    reloads: int = 0


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
