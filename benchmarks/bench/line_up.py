"""Who competes: every system, in process and through gRPC, with the settings that are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.contest import Contender, ContenderError, Ours
from bench.devices import Device, device
from bench.drafts import unrelated_draft
from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from bench.systems import SYSTEMS, System
from bench.through_grpc import ServerError, through_grpc
from card.speculation.pacing import PACINGS, PLAIN

_EVERY_COUNT_UP_TO = 4


def thread_counts(most: int) -> list[int]:
    """1 to `most` threads; beyond the first few, each count is half as much again."""
    counts = list(range(1, min(most, _EVERY_COUNT_UP_TO) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] * 3 // 2))
    return counts


def quickest(pair: InProcess, threads: Sequence[int]) -> int:
    """With how many threads passes of the target took least, measured at load."""
    return min(threads, key=lambda count: sum(pair.target_on(count).row_costs_ms.values()))


def line_up_in_process(
    stack: ExitStack, pair: InProcess, threads: Sequence[int]
) -> list[Contender]:
    """Every pacing that comes with no growth rule of its own, the target alone first; `stack` ends
    what they run on."""
    plain = [name for name, pacing in PACINGS.items() if pacing.growth is None]
    systems = {name: System("", "", decoding=name) for name in sorted(plain, key=PLAIN.__ne__)}
    family = line_up_family(stack, pair, threads, systems)
    return [*family, *_worst_case(stack, pair), *_draft_alone(stack, pair, threads)]


def line_up_family(
    stack: ExitStack,
    pair: InProcess,
    threads: Sequence[int],
    systems: Mapping[str, System],
    in_turns: Sequence[int] | None = None,
) -> list[Contender]:
    """Each system as its pacing runs best; those of like settings share a draft's process.

    in_turns  numbers of threads for those whose models take turns; None: `threads`
    """
    free: list[tuple[Mapping[str, Any], Loops]] = []

    def beside(speculation: Mapping[str, Any]) -> Loops:
        for settings, loops in free:
            if settings == speculation:
                return loops
        free.append((speculation, stack.enter_context(pair.beside(**speculation))))
        return free[-1][1]

    found: list[Contender] = []
    for name, system in systems.items():
        pacing = PACINGS[system.decoding]
        if system.on_a_device:
            continue
        if not pacing.queries:
            loops = beside(system.speculation)
            found += [_in_process(name, system, loops, threads=count, rows=1) for count in threads]
        elif not pacing.parallel:
            found += _in_turns(name, system, stack, pair, in_turns or threads)
        elif pacing.waits:
            found += _in_rounds(name, system, stack, pair)
        else:
            found.append(_free(name, system, beside(system.speculation), pair))
    return found


def line_up_through_grpc(
    stack: ExitStack, pair: InProcess, settings_file: Path | None
) -> list[Contender]:
    """CARD behind a server that `stack` stops. Raises `ServerError`."""
    server = stack.enter_context(through_grpc(pair.settings, settings_file))
    return [
        Contender(
            "card",
            "grpc",
            pair.settings.target.threads,
            pair.rows,
            width=pair.settings.speculation.width,
            rows_adapt=pair.rows_adapt,
            complete=lambda task: server.complete(task, "card"),
        )
    ]


def line_up_devices(
    stack: ExitStack,
    pair: InProcess,
    settings_file: Path | None,
    systems: Mapping[str, System],
) -> list[Contender]:
    """The systems whose drafts are made on a device far from a server; `stack` ends both. Raises
    `ServerError`."""
    wanted = {name: system for name, system in systems.items() if system.on_a_device}
    if not wanted:
        return []
    server = stack.enter_context(through_grpc(pair.settings, settings_file))
    far = stack.enter_context(device(pair.settings.draft.path, server))
    return [
        _on_a_device(name, system, far, pair, gamma)
        for name, system in wanted.items()
        for gamma in system.gammas
    ]


def _on_a_device(name: Ours, system: System, far: Device, pair: InProcess, gamma: int) -> Contender:
    def complete(task: Task) -> Measurement:
        try:
            return far.complete(task, system.decoding, gamma)
        except ServerError as error:
            raise ContenderError(f"{name}: {error}") from error

    return Contender(
        name,
        "grpc",
        pair.settings.target.threads,
        pair.rows,
        gamma,
        rows_adapt=pair.rows_adapt,
        lossless=system.lossless,
        complete=complete,
    )


def _in_turns(
    name: Ours, system: System, stack: ExitStack, pair: InProcess, threads: Sequence[int]
) -> list[Contender]:
    """One process, all of whose threads belong to whichever model runs."""
    width = system.speculation.get("width", 1)
    loops_of = stack.enter_context(pair.alternating(**system.speculation))
    return [
        _in_process(
            name,
            system,
            loops_of(gamma, width),
            threads=count,
            rows=pair.rows_for(gamma),
            rows_adapt=pair.rows_adapt,
            gamma=gamma,
            width=width,
        )
        for gamma in system.gammas
        for count in threads
    ]


def _in_rounds(name: Ours, system: System, stack: ExitStack, pair: InProcess) -> list[Contender]:
    """In two processes, the draft growing a chain."""
    width = system.speculation.get("width", 1)
    longest = PACINGS[system.decoding].chunk(max(system.gammas))
    changes = {**pair.room_for(longest, width), **system.speculation}
    beside = stack.enter_context(pair.beside(**changes))
    return [
        _in_process(
            name,
            system,
            beside,
            threads=pair.settings.target.threads,
            rows=pair.rows_for(longest),
            rows_adapt=pair.rows_adapt,
            gamma=gamma,
            width=width,
        )
        for gamma in system.gammas
    ]


def _worst_case(stack: ExitStack, pair: InProcess) -> list[Contender]:
    """CARD with a draft that knows nothing."""
    draft = stack.enter_context(unrelated_draft(pair.settings.draft.path))
    loops = stack.enter_context(pair.beside(draft))
    return [_free("card_unrelated_draft", SYSTEMS["card"], loops, pair)]


def _draft_alone(stack: ExitStack, pair: InProcess, threads: Sequence[int]) -> list[Contender]:
    """What the draft model reaches by itself."""
    loops = stack.enter_context(pair.draft_alone())

    def contender(count: int) -> Contender:
        def complete(task: Task) -> Measurement:
            return loops.complete(task, PLAIN, threads=count)

        return Contender("draft_alone", "in_process", count, 1, complete=complete)

    return [contender(count) for count in threads]


def _free(name: Ours, system: System, loops: Loops, pair: InProcess) -> Contender:
    """In two processes, of which neither waits."""
    return _in_process(
        name,
        system,
        loops,
        threads=pair.settings.target.threads,
        rows=pair.rows,
        rows_adapt=pair.rows_adapt,
        width=pair.settings.speculation.width,
    )


def _in_process(
    name: Ours,
    system: System,
    loops: Loops,
    *,
    threads: int,
    rows: int,
    rows_adapt: bool = False,
    gamma: int | None = None,
    width: int | None = None,
) -> Contender:
    def complete(task: Task) -> Measurement:
        return loops.complete(
            task, system.decoding, threads=threads, gamma=gamma or 1, acceptance=system.acceptance
        )

    return Contender(
        name,
        "in_process",
        threads,
        rows,
        gamma,
        width,
        rows_adapt=rows_adapt,
        lossless=system.lossless,
        complete=complete,
    )
