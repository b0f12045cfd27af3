"""A prompt decoded as the server is set, and plainly: the text as it streams, and both figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from card_client import CardClient, GenerateRequest
from card_client.display import ACCEPTED, CORRECTED, Tally, TextPrinter, hit_rate, mean_accepted
from card_client.wire import Response

_LEAST_S = 2.0
"""Less, of both ways together, says little of a machine that does something else too."""
_MOST_ROUNDS = 5


async def compare(
    grpc: str,
    request: GenerateRequest,
    shown: str,
    name: str,
    settled: Callable[[], Awaitable[None]],
) -> None:
    """Print the text of `request` as it arrives. Then await `settled` and measure both ways to
    decode it, in turns and more than once where it takes little time.

    `grpc` is the server's host:port, `shown` what a person typed, `name` what speculation is called
    here. `settled` returns once the server has the processor to itself: until then it compiles
    decoders, and figures would say nothing of it. Raises `CardError`.
    """
    console = Console()
    printer = TextPrinter(console)
    plain = replace(request, decoding="autoregressive")
    async with CardClient(grpc) as client:
        printer.prompt(shown)
        try:
            first = await _decode(client, request, printer.text)
        finally:
            printer.end()
        await settled()
        of_card: list[Tally] = []
        of_plain: list[Tally] = []
        while not of_plain or (
            len(of_plain) < _MOST_ROUNDS
            and sum(run.seconds for run in of_card + of_plain) < _LEAST_S
        ):
            of_card.append(await _decode(client, request))
            of_plain.append(await _decode(client, plain))
    if console.is_terminal:
        legend = Text.assemble(("from the cache", ACCEPTED), ", ", ("corrected", CORRECTED))
        console.print(legend)
    elif not first.text.endswith("\n"):
        console.print()
    console.print(_table(name, _median(of_card), _median(of_plain)))
    if len(of_plain) > 1:
        console.print(f"Medians of {len(of_plain)} rounds.", highlight=False)
    if request.seed is not None:
        console.print(f"seed {request.seed}", highlight=False)
    same = len({run.text for run in (first, *of_card, *of_plain)}) == 1
    console.print(f"The texts are {'identical' if same else 'NOT identical'}.", highlight=False)


def _median(runs: Sequence[Tally]) -> Tally:
    """The run of the median time, of two the longer."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


async def _decode(
    client: CardClient, request: GenerateRequest, show: Callable[[Response], None] | None = None
) -> Tally:
    tally = Tally()
    async with aclosing(client.stream(request)) as deltas:
        async for delta in deltas:
            tally.add(delta)
            if show is not None:
                show(delta)
    return tally


def _table(name: str, card: Tally, plain: Tally) -> Table:
    table = Table()
    for heading in ("", name, "autoregressive"):
        table.add_column(heading, justify="right" if heading else "left")
    accepted, hits = mean_accepted(card.last), hit_rate(card.last)
    speedup = f" ({card.tokens_per_s / plain.tokens_per_s:.2f}x)" if plain.tokens_per_s else ""
    table.add_row("tokens", str(card.last.num_output_tokens), str(plain.last.num_output_tokens))
    table.add_row("seconds", f"{card.seconds:.2f}", f"{plain.seconds:.2f}")
    table.add_row("tokens/s", f"{card.tokens_per_s:.1f}{speedup}", f"{plain.tokens_per_s:.1f}")
    if accepted is not None:
        table.add_row("mean accepted tokens per target step", f"{accepted:.2f}", "")
    if hits is not None:  # where no draft worked the cache was never asked
        table.add_row("cache hit rate", f"{hits:.1%}", "")
    return table
