"""Who competes: every system, in process and through gRPC, with the settings that are tried."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.contest import Contender, Ours
from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from bench.through_grpc import through_grpc
from bench.unrelated import unrelated_draft
from card.speculation.pacing import PACINGS, PLAIN

GAMMAS = (1, 2, 3, 4, 6, 8)
_EVERY_COUNT_UP_TO = 4


def thread_counts(most: int) -> list[int]:
    """1 to `most` threads; beyond the first few, each count is half as much again."""
    counts = list(range(1, min(most, _EVERY_COUNT_UP_TO) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] * 3 // 2))
    return counts


def line_up_in_process(
    stack: ExitStack, pair: InProcess, threads: Sequence[int]
) -> list[Contender]:
    """Every pacing that comes with no growth rule of its own, the target alone first; `stack` ends
    what they run on."""
    beside = stack.enter_context(pair.beside())
    found = [_in_process(PLAIN, PLAIN, beside, threads=count, rows=1) for count in threads]
    for name, pacing in PACINGS.items():
        if pacing.growth is not None:
            continue
        if not pacing.parallel and pacing.drafts:
            found += _in_turns(name, stack, pair, threads)
        elif pacing.waits:
            found += _in_rounds(name, stack, pair)
        elif pacing.queries:
            found.append(_free(name, name, beside, pair))
    return [*found, *_worst_case(stack, pair), *_draft_alone(stack, pair, threads)]


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


def _in_turns(
    pacing: str, stack: ExitStack, pair: InProcess, threads: Sequence[int]
) -> list[Contender]:
    """One process, all of whose threads belong to whichever model runs."""
    width = 1
    loops_of = stack.enter_context(pair.alternating())
    return [
        _in_process(
            pacing,
            pacing,
            loops_of(gamma, width),
            threads=count,
            rows=pair.rows_for(gamma),
            rows_adapt=pair.rows_adapt,
            gamma=gamma,
            width=width,
        )
        for gamma in GAMMAS
        for count in threads
    ]


def _in_rounds(pacing: str, stack: ExitStack, pair: InProcess) -> list[Contender]:
    """In two processes, the draft growing a chain."""
    # Who looks ahead verifies the first of γ while the others are made.
    width, longest = 1, max(GAMMAS) - PACINGS[pacing].looks_ahead
    beside = stack.enter_context(pair.beside(**pair.room_for(longest, width)))
    return [
        _in_process(
            pacing,
            pacing,
            beside,
            threads=pair.settings.target.threads,
            rows=pair.rows_for(longest),
            rows_adapt=pair.rows_adapt,
            gamma=gamma,
            width=width,
        )
        for gamma in GAMMAS
    ]


def _worst_case(stack: ExitStack, pair: InProcess) -> list[Contender]:
    """CARD with a draft that knows nothing."""
    draft = stack.enter_context(unrelated_draft(pair.settings.draft.path))
    loops = stack.enter_context(pair.beside(draft))
    return [_free("card_unrelated_draft", "card", loops, pair)]


def _draft_alone(stack: ExitStack, pair: InProcess, threads: Sequence[int]) -> list[Contender]:
    """What the draft model reaches by itself."""
    loops = stack.enter_context(pair.draft_alone())

    def contender(count: int) -> Contender:
        def complete(task: Task) -> Measurement:
            return loops.complete(task, "autoregressive", threads=count)

        return Contender("draft_alone", "in_process", count, 1, complete=complete)

    return [contender(count) for count in threads]


def _free(system: Ours, pacing: str, loops: Loops, pair: InProcess) -> Contender:
    """In two processes, of which neither waits."""
    return _in_process(
        system,
        pacing,
        loops,
        threads=pair.settings.target.threads,
        rows=pair.rows,
        rows_adapt=pair.rows_adapt,
        width=pair.settings.speculation.width,
    )


def _in_process(
    system: Ours,
    pacing: str,
    loops: Loops,
    *,
    threads: int,
    rows: int,
    rows_adapt: bool = False,
    gamma: int | None = None,
    width: int | None = None,
) -> Contender:
    def complete(task: Task) -> Measurement:
        return loops.complete(task, pacing, threads=threads, gamma=gamma or 1)

    return Contender(
        system, "in_process", threads, rows, gamma, width, rows_adapt=rows_adapt, complete=complete
    )
