"""The world of ranks: one."""

from __future__ import annotations

from typing import TypeVar

_Object = TypeVar("_Object")


def mpi_rank() -> int:
    return 0


def mpi_broadcast(obj: _Object, root: int = 0) -> _Object:
    return obj
