"""One prompt decoded with CARD, streaming to the terminal, and plainly, and both figures."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table
from rich.text import Text

from card_client import CardClient, GenerateRequest
from card_client.display import ACCEPTED, CORRECTED, TextPrinter, mean_accepted
from card_client.wire import Response

FIGURES_S = 3.0
"""The server exports its counters a moment after the text has ended."""
_LOOK_S = 0.1


@dataclass(frozen=True)
class Run:
    """One decoded text. seconds: from the request to the last token."""

    text: str
    seconds: float
    last: Response

    @property
    def tokens(self) -> int:
        return self.last.num_output_tokens or 0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


async def compare(grpc: str, metrics: str, request: GenerateRequest) -> None:
    """Print the text of `request` as it arrives, then the figures of both ways to decode it.

    `grpc` is the server's host:port, `metrics` the URL of its metrics. Raises `CardError`.
    """
    console = Console()
    printer = TextPrinter(console)
    card = replace(request, decoding="card")
    plain = replace(request, decoding="autoregressive")
    async with CardClient(grpc) as client:
        # The first request after a start pays for what the second finds ready.
        await client.generate(replace(plain, max_tokens=1))
        printer.prompt(request.text_input)
        try:
            with_card = await _decode(client, card, printer.text)
        finally:
            printer.end()
        without = await _decode(client, plain, lambda delta: None)
    if console.is_terminal:
        legend = Text.assemble(("from the cache", ACCEPTED), ", ", ("corrected", CORRECTED))
        console.print(legend)
    elif not with_card.text.endswith("\n"):
        console.print()
    console.print(_table(with_card, without, await _hit_rate(metrics)))
    if request.seed is not None:
        console.print(f"seed {request.seed}", highlight=False)
    same = with_card.text == without.text
    console.print(f"The texts are {'identical' if same else 'NOT identical'}.", highlight=False)


async def _decode(
    client: CardClient, request: GenerateRequest, show: Callable[[Response], None]
) -> Run:
    clock = asyncio.get_running_loop().time
    began_s = ended_s = clock()
    pieces, last = [], Response()
    async with aclosing(client.stream(request)) as deltas:
        async for last in deltas:
            ended_s = clock()
            pieces.append(last.text)
            show(last)
    return Run("".join(pieces), ended_s - began_s, last)


def _table(card: Run, plain: Run, hit_rate: float | None) -> Table:
    table = Table()
    for heading in ("", "CARD", "autoregressive"):
        table.add_column(heading, justify="right" if heading else "left")
    accepted = mean_accepted(card.last)
    speedup = f" ({card.tokens_per_s / plain.tokens_per_s:.2f}x)" if plain.tokens_per_s else ""
    table.add_row("tokens", str(card.tokens), str(plain.tokens))
    table.add_row("seconds", f"{card.seconds:.2f}", f"{plain.seconds:.2f}")
    table.add_row("tokens/s", f"{card.tokens_per_s:.1f}{speedup}", f"{plain.tokens_per_s:.1f}")
    table.add_row("mean accepted tokens per target step", _known(accepted, ".2f"), "")
    table.add_row("cache hit rate", _known(hit_rate, ".1%"), "")
    return table


def _known(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


async def _hit_rate(url: str) -> float | None:
    """Share of the target's queries that found candidates; None if the metrics do not say."""
    clock = asyncio.get_running_loop().time
    limit_s = clock() + FIGURES_S
    while clock() < limit_s:
        counts = await asyncio.to_thread(_counts_of_card, url)
        if queries := counts.get("card_queries_total"):
            return counts.get("card_query_hits_total", 0.0) / queries
        await asyncio.sleep(_LOOK_S)
    return None


def _counts_of_card(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=FIGURES_S) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("decoding") == "card" and "outcome" not in sample.labels
    }
