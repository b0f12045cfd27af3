"""Who competes: every system, in process and through a server, with the settings that are tried."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.device import Device, device
from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from bench.runner import Contender
from bench.served import serving
from bench.systems import System
from card.cores import usable_cores
from card.speculation.pacing import PACINGS


def line_up_in_process(
    stack: ExitStack, pair: InProcess, systems: Mapping[str, System]
) -> list[Contender]:
    """Each system as its pacing runs best; `stack` ends what they run on.

    A system whose pacing adapts has a pool, a draft's process and a controller of its own, so the
    texts of no other system teach its controller. The others share them, where settings are equal.
    """
    open_loops: list[tuple[tuple[bool, Mapping[str, Any]], Loops]] = []

    def beside(adapts: bool, speculation: Mapping[str, Any]) -> Loops:
        for shared, loops in open_loops:
            if shared == (adapts, speculation):
                return loops
        loops = stack.enter_context(pair.beside(**speculation))
        open_loops.append(((adapts, speculation), loops))
        return loops

    found: list[Contender] = []
    for name, system in systems.items():
        pacing, width = PACINGS[system.decoding], system.speculation.get("width", 1)
        if system.on_a_device:
            continue
        if pacing.queries and not pacing.parallel:
            # In one process, where the model that runs has all threads.
            loops_of = stack.enter_context(pair.alternating(**system.speculation))
            found += [
                _contender(name, system, pair, loops_of(gamma, width), gamma, usable_cores())
                for gamma in system.gammas
            ]
        elif pacing.waits:
            room = pair.room_for(pacing.chunk(max(system.gammas)), width)
            loops = stack.enter_context(pair.beside(**{**room, **system.speculation}))
            found += [_contender(name, system, pair, loops, gamma=gamma) for gamma in system.gammas]
        else:
            loops = beside(pacing.adapts, system.speculation)
            found.append(_contender(name, system, pair, loops))
    return found


def _contender(
    name: str,
    system: System,
    pair: InProcess,
    loops: Loops,
    gamma: int | None = None,
    threads: int | None = None,
) -> Contender:
    """threads  None: those of the settings"""
    pacing, count = PACINGS[system.decoding], threads or pair.settings.target.threads

    def complete(task: Task) -> Measurement:
        return loops.complete(
            task, system.decoding, threads=count, gamma=gamma or 1, acceptance=system.acceptance
        )

    rows = pair.rows if pacing.queries else 1
    if gamma is not None:
        rows = pair.rows_for(pacing.chunk(gamma))
    return Contender(name, "in_process", rows, gamma, lossless=system.lossless, complete=complete)


def line_up_served(
    stack: ExitStack,
    pair: InProcess,
    settings_file: Path | None,
    systems: Mapping[str, System],
) -> list[Contender]:
    """The systems behind a server, which `stack` stops; those that draft on a device have one.

    Raises `ServerError`.
    """
    if not systems:
        return []
    server = stack.enter_context(serving(pair.settings, settings_file))
    far: Device | None = None
    if any(system.on_a_device for system in systems.values()):
        far = stack.enter_context(device(pair.settings.draft.path, server))

    def served(name: str, system: System, gamma: int | None) -> Contender:
        def complete(task: Task) -> Measurement:
            if far is not None and gamma is not None:
                return far(task, system.decoding, gamma)
            return server.complete(task, system.decoding)

        return Contender(name, "grpc", pair.rows, gamma, complete=complete)

    return [
        served(name, system, gamma)
        for name, system in systems.items()
        for gamma in (system.gammas if system.on_a_device else (None,))
    ]
