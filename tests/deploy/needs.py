"""What a service needs of the place where it runs, whatever that is."""

from __future__ import annotations

from card.cache.pool import pool_bytes
from card.serving.geometry import pool_geometry
from card.serving.supervision.states import STUBS
from card.serving.supervision.supervisor import LINGER_S
from card.serving.triton_server import MINIMUM_REGION_BYTES
from card.settings import Settings

KILL_S = 10.0
"""How long the supervisor may take to end processes that do not answer (`processes.kill`)."""
_UNITS = {"m": 1 << 20, "g": 1 << 30}


def stop_s(settings: Settings) -> float:
    """Longest time from SIGTERM to the end of the service."""
    return settings.serving.drain_s + LINGER_S + KILL_S


def shared_memory_bytes(settings: Settings) -> int:
    """Two candidate caches, and Triton's regions."""
    return 2 * pool_bytes(pool_geometry(settings)) + 8 * len(STUBS) * MINIMUM_REGION_BYTES


def in_bytes(size: str | int) -> int:
    """A size as Kubernetes (256Mi) or Compose (256mb, 268435456) writes it."""
    text = str(size).lower()
    return int(text) if text.isdigit() else int(text[:-2]) * _UNITS[text[-2]]
