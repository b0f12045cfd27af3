"""The supervisor's own metrics: states, recoveries, and what each process holds.

Made anew for every scrape from what was seen last, so nothing is counted twice or kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import psutil
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from card.serving.supervision.sighting import STATES, ServiceHealth


def exposition(health: ServiceHealth, stubs: Sequence[str], *, live: bool) -> bytes:
    """What Prometheus reads.

    stubs  models of the service that have a process
    live   whether the supervisor still looks around
    """
    registry = CollectorRegistry()
    registry.register(_Figures(health, stubs, live))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, health: ServiceHealth, stubs: Sequence[str], live: bool) -> None:
        self._health = health
        self._stubs = stubs
        self._live = live

    def collect(self) -> Iterator[Metric]:
        yield from self._states()
        yield from self._recoveries()
        yield from self._processes()

    def _states(self) -> Iterator[Metric]:
        health = self._health
        yield GaugeMetricFamily(
            "card_service_ready",
            "Whether a request now would be answered.",
            value=self._live and health.ready,
        )
        state = GaugeMetricFamily(
            "card_service_state", "1 for the state the service is in.", labels=["state"]
        )
        for name in STATES:
            state.add_metric([name], name == health.state)
        yield state
        well = GaugeMetricFamily(
            "card_model_well", "Whether a model's process runs and takes part.", labels=["model"]
        )
        for model in self._stubs:
            well.add_metric([model], _is_well(health, model))
        yield well

    def _recoveries(self) -> Iterator[Metric]:
        health = self._health
        yield CounterMetricFamily(
            "card_server_restarts", "Times the whole server was restarted.",
            value=health.server_restarts,
        )  # fmt: skip
        yield CounterMetricFamily(
            "card_guard_restarts", "Times the guard in front of gRPC was started again.",
            value=health.guard_restarts,
        )  # fmt: skip
        reloads = CounterMetricFamily(
            "card_model_reloads", "Times a model was killed and loaded again.", labels=["model"]
        )
        for model, seen in health.models.items():  # none while the server restarts
            reloads.add_metric([model], seen.reloads)
        yield reloads

    def _processes(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            "card_process_resident_memory_bytes", "Resident memory of a process.",
            labels=["process"],
        )  # fmt: skip
        files = GaugeMetricFamily(
            "card_process_open_files", "File descriptors of a process.", labels=["process"]
        )
        for name, process in self._running():
            try:
                with process.oneshot():
                    resident, open_files = process.memory_info().rss, process.num_fds()
            except psutil.Error:  # it has just ended
                continue
            memory.add_metric([name], resident)
            files.add_metric([name], open_files)
        yield memory
        yield files

    def _running(self) -> Iterator[tuple[str, psutil.Process]]:
        pids = {"supervisor": os.getpid(), "server": self._health.server_pid}
        pids |= {model: seen.pid for model, seen in self._health.models.items()}
        if self._health.guard is not None:
            pids["guard"] = self._health.guard.pid
        for name, pid in pids.items():
            try:
                if pid is not None:
                    yield name, psutil.Process(pid)
            except psutil.NoSuchProcess:
                continue


def _is_well(health: ServiceHealth, model: str) -> bool:
    seen = health.models.get(model)
    return seen is not None and seen.state == "well"
