"""The life of a fleet: start, wait until all are ready, stop."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.environment import router_program
from fleet.replica import PORTS, ReplicaProcess
from fleet.router import Router

LOOK_S = 0.1
KEPT = "CARD_CACHE__KEPT_TOKENS"
KEPT_TOKENS = 32768
"""Tokens of earlier texts that a replica keeps, unless the settings or the environment say: at 23
KiB a token of the chat target, as many conversations as a fleet on one machine is tried with."""


@dataclass(frozen=True)
class Fleet:
    replicas: list[ReplicaProcess]
    router: Router

    def restored(self) -> list[int]:
        """Start the lost replicas again, and return their places. Raises `RouterEndedError`."""
        self.router.check_alive()
        return [place for place, one in enumerate(self.replicas) if one.starts_again_if_lost()]


def fleet_of(
    count: int,
    port: int,
    first_port: int,
    logs: Path,
    policy: str = "cache_aware",
    settings: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Fleet:
    """A fleet that has not started. Replicas take five ports each from `first_port` on, and the
    port behind theirs is that of the router's metrics. Raises `EnvironmentFailedError`."""
    logs.mkdir(parents=True, exist_ok=True)
    variables = dict(variables or {})
    if settings is None and KEPT not in os.environ:
        variables.setdefault(KEPT, str(KEPT_TOKENS))
    replicas = [
        ReplicaProcess(
            dict(zip(PORTS, itertools.count(first_port + len(PORTS) * place), strict=False)),
            logs / f"replica-{place}.log",
            settings,
            variables,
        )
        for place in range(count)
    ]
    router = Router(
        router_program(),
        [replica.url for replica in replicas],
        port,
        first_port + len(PORTS) * count,
        logs / "router.log",
        policy,
    )
    return Fleet(replicas, router)


def await_ready(one: ReplicaProcess | Router) -> None:
    """Return once it is ready. Raises what its `is_ready` raises."""
    while not one.is_ready():
        time.sleep(LOOK_S)


@contextmanager
def running(fleet: Fleet) -> Iterator[None]:
    """Start the replicas one after the other, then the router; stop all, whatever happens.

    A second replica that loads beside the first would disturb what the first one measures.
    """
    try:
        for replica in fleet.replicas:
            replica.start()
            await_ready(replica)
        fleet.router.start()
        await_ready(fleet.router)
        yield
    finally:
        # Open answers finish while the router still passes them on.
        fleet.router.stop()
        for replica in fleet.replicas:
            replica.drain()
        for replica in fleet.replicas:
            replica.wait()
        fleet.router.wait()
