"""The supervisor's own metrics: states, recoveries, and what each process holds.

Made anew for every scrape from what was seen last, so nothing is counted twice or kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import psutil
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
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
        health = self._health
        ready = self._live and health.ready
        yield _figure(
            Gauge, "card_service_ready", "Whether a request now would be answered.", ready
        )
        told = "1 for the state the service is in."
        states = {state: state == health.state for state in STATES}
        yield _figure(Gauge, "card_service_state", told, state=states)
        told = "Whether a model's process runs and takes part."
        well = {name: seen.state == "well" for name, seen in health.models.items()}
        well = {model: well.get(model, False) for model in self._stubs}
        yield _figure(Gauge, "card_model_well", told, model=well)
        told = "Times the whole server was restarted."
        yield _figure(Counter, "card_server_restarts", told, health.server_restarts)
        told = "Times the guard in front of gRPC was started again."
        yield _figure(Counter, "card_guard_restarts", told, health.guard_restarts)
        told = "Times a model was killed and loaded again."
        reloads = {name: seen.reloads for name, seen in health.models.items()}
        yield _figure(Counter, "card_model_reloads", told, model=reloads)
        held = dict(self._held())
        resident = {name: memory for name, (memory, _) in held.items()}
        told = "Resident memory of a process."
        yield _figure(Gauge, "card_process_resident_memory_bytes", told, process=resident)
        files = {name: count for name, (_, count) in held.items()}
        told = "File descriptors of a process."
        yield _figure(Gauge, "card_process_open_files", told, process=files)

    def _held(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Memory and files of every process that runs."""
        pids = {"supervisor": os.getpid(), "server": self._health.server_pid}
        pids |= {model: seen.pid for model, seen in self._health.models.items()}
        if self._health.guard is not None:
            pids["guard"] = self._health.guard.pid
        for name, pid in pids.items():
            with suppress(psutil.Error):  # it has just ended
                if pid is not None:
                    process = psutil.Process(pid)
                    yield name, (process.memory_info().rss, process.num_fds())


def _figure(
    kind: type[Gauge | Counter],
    name: str,
    text: str,
    value: float | None = None,
    **labelled: Mapping[str, float],
) -> Metric:
    """A metric with one value, or with one for each value of its label."""
    family = kind(name, text, value, labels=[*labelled] or None)
    for values in labelled.values():
        for label, number in values.items():
            family.add_metric([label], number)
    return family
