"""Who competes: every system, in process and through gRPC, with the settings that are swept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.contest import Contender, Ours
from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from bench.through_grpc import ThroughGrpc, through_grpc
from card.cache import Decoding
from card.cores import usable_cores

_EVERY_COUNT_UP_TO = 4
_SERVED: tuple[Ours, ...] = ("autoregressive", "draft_then_verify", "card")


def thread_counts(most: int) -> list[int]:
    """1 to `most` threads; beyond the first few, each count is half as much again."""
    counts = list(range(1, min(most, _EVERY_COUNT_UP_TO) + 1))
    while counts[-1] < most:
        counts.append(min(most, counts[-1] * 3 // 2))
    return counts


def line_up_in_process(
    stack: ExitStack,
    pair: InProcess,
    threads: Sequence[int],
    gammas: Sequence[int],
    widths: Sequence[int],
    turn_threads: Sequence[int] = (),
) -> list[Contender]:
    """The target alone first; `stack` ends what they run on.

    turn_threads  of draft-then-verify; none: all cores
    """
    alone_and_card = line_up_alone_and_card(stack, pair, threads)
    alternating = stack.enter_context(pair.alternating())
    turns = [
        _in_process(
            "draft_then_verify",
            alternating(gamma, width),
            threads=count,
            rows=pair.rows_for(gamma),
            rows_adapt=pair.rows_adapt,
            gamma=gamma,
            width=width,
        )
        for count in turn_threads or (usable_cores(),)
        for gamma in gammas
        for width in widths
    ]
    return [*alone_and_card[:-1], *turns, alone_and_card[-1]]


def line_up_alone_and_card(
    stack: ExitStack, pair: InProcess, threads: Sequence[int]
) -> list[Contender]:
    """The target alone with every thread count, then CARD, on the same two processes."""
    beside = stack.enter_context(pair.beside())
    alone = [_in_process("autoregressive", beside, threads=count, rows=1) for count in threads]
    card = _in_process(
        "card",
        beside,
        threads=pair.settings.target.threads,
        rows=pair.rows,
        rows_adapt=pair.rows_adapt,
        width=pair.settings.speculation.width,
    )
    return [*alone, card]


def line_up_pearl(stack: ExitStack, pair: InProcess, gammas: Sequence[int]) -> list[Contender]:
    """PEARL in two processes with every γ, its draft growing a chain, as in its paper."""
    width, longest = 1, max(gammas) - 1  # the first of γ is verified while the others are made
    beside = stack.enter_context(pair.beside(**pair.room_for(longest, width)))
    return [
        _in_process(
            "pearl",
            beside,
            threads=pair.settings.target.threads,
            rows=pair.rows_for(longest),
            rows_adapt=pair.rows_adapt,
            gamma=gamma,
            width=width,
        )
        for gamma in gammas
    ]


def line_up_without_guesses(stack: ExitStack, pair: InProcess) -> list[Contender]:
    """CARD as it is, but that nothing is guessed from the text: what these guesses are worth."""
    speculation = pair.settings.speculation
    if not speculation.lookahead:
        return []
    loops = stack.enter_context(pair.beside(lookahead=0))
    return [
        _in_process(
            "card_without_guesses",
            loops,
            threads=pair.settings.target.threads,
            rows=pair.rows,
            rows_adapt=pair.rows_adapt,
            width=speculation.width,
        )
    ]


def line_up_draft_alone(
    stack: ExitStack, pair: InProcess, threads: Sequence[int]
) -> list[Contender]:
    """What the draft model reaches by itself."""
    loops = stack.enter_context(pair.draft_alone())

    def contender(count: int) -> Contender:
        def complete(task: Task) -> Measurement:
            return loops.complete(task, Decoding.AUTOREGRESSIVE, threads=count)

        return Contender("draft_alone", "in_process", count, 1, complete=complete)

    return [contender(count) for count in threads]


def line_up_through_grpc(
    stack: ExitStack,
    pair: InProcess,
    settings_file: Path | None,
    systems: Sequence[Ours] = _SERVED,
) -> list[Contender]:
    """The same pair behind a server that `stack` stops. Raises `ServerError`."""
    server = stack.enter_context(through_grpc(pair.settings, settings_file))
    return [_through_grpc(system, server, pair) for system in systems]


def _in_process(
    system: Ours,
    loops: Loops,
    *,
    threads: int,
    rows: int,
    rows_adapt: bool = False,
    gamma: int | None = None,
    width: int | None = None,
) -> Contender:
    decoding = Decoding.CARD if system.startswith("card") else Decoding[system.upper()]

    def complete(task: Task) -> Measurement:
        return loops.complete(task, decoding, threads=threads, gamma=gamma or 1)

    return Contender(
        system, "in_process", threads, rows, gamma, width, rows_adapt=rows_adapt, complete=complete
    )


def _through_grpc(system: Ours, server: ThroughGrpc, pair: InProcess) -> Contender:
    decoding = Decoding[system.upper()]
    speculation = pair.settings.speculation
    alone = system == "autoregressive"
    options = pair.target.options
    return Contender(
        system,
        "grpc",
        (alone and options.threads_alone) or options.threads,
        rows=1 if alone else pair.rows,
        gamma=speculation.gamma if system == "draft_then_verify" else None,
        width=None if alone else speculation.width,
        rows_adapt=pair.rows_adapt and not alone,
        complete=lambda task: server.complete(task, decoding),
    )
