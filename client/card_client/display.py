"""What people see: text as it arrives, and its figures."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from card_client.wire import Response

PROMPT = Style(dim=True)
ACCEPTED = Style(color="green")
CORRECTED = Style(color="yellow", bold=True)

# A terminal would obey the control characters of a generated text; it shows their pictures, and a
# replacement character for those above ASCII, which have none.
_PICTURES = (
    {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
)


class TextPrinter:
    """Writes generated text: coloured on a terminal, byte for byte elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def prompt(self, text: str) -> None:
        """Shows what the text continues; a pipe gets the new text alone."""
        if self._console.is_terminal:
            self._write(text, PROMPT)

    def text(self, response: Response) -> None:
        """Shows accepted and corrected text, plain where the server does not tell them apart."""
        if response.accepted_bytes is None:
            self._write(response.text, Style.null())
        else:
            self._write(response.accepted_text, ACCEPTED)
            self._write(response.corrected_text, CORRECTED)

    def end(self) -> None:
        """Leaves a terminal at the start of a line."""
        if self._console.is_terminal:
            self._write("\n", Style.null())

    def _write(self, text: str, style: Style) -> None:
        if not self._console.is_terminal:
            self._console.file.write(text)
        elif text:
            # Segments are written as they are: nothing is wrapped, expanded or highlighted.
            piece = Segment(text.translate(_PICTURES), style)
            self._console.print(Segments([piece]), end="", soft_wrap=True)
        self._console.file.flush()


class Tally:
    """Collects a text and its figures while it arrives. Times are in seconds of `clock`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self._first: float | None = None
        self._last = self._start
        self._pieces: list[str] = []
        self._response: Response | None = None

    @property
    def seconds(self) -> float:
        """From the request to the last piece."""
        return self._last - self._start

    @property
    def first_s(self) -> float | None:
        """From the request to the first text; None: there was none."""
        return None if self._first is None else self._first - self._start

    @property
    def last(self) -> Response:
        """What told the counts so far."""
        return self._response or Response()

    @property
    def tokens_per_s(self) -> float:
        return (self.last.num_output_tokens or 0) / self.seconds if self.seconds > 0 else 0.0

    def add(self, response: Response) -> None:
        self._last = self._clock()
        if self._first is None and response.text:
            self._first = self._last
        self._pieces.append(response.text)
        self._response = response

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def figures(self) -> str:
        """One line: tokens, seconds, tokens/s, time to first text, mean accepted per step, end."""
        response = self.last
        parts = [f"{self.seconds:.2f} s"]
        if response.num_output_tokens is not None:
            parts.insert(0, f"{response.num_output_tokens} tokens")
            if self.seconds > 0:
                parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.first_s is not None:
            parts.append(f"first text after {self.first_s:.2f} s")
        accepted = mean_accepted(response)
        if accepted is not None:
            parts.append(f"{accepted:.2f} accepted per step")
        if response.finish_reason:
            parts.append(f"ended by {response.finish_reason}")
        return ", ".join(parts)


def mean_accepted(response: Response) -> float | None:
    """Accepted drafted tokens per target step; None where the server does not report it."""
    accepted, steps = response.total_accepted_draft_tokens, response.target_steps
    return None if accepted is None or not steps else accepted / steps


def hit_rate(response: Response) -> float | None:
    """Share of the cache's queries that gave candidates; None where the server reports none."""
    hits, queries = response.cache_hits, response.cache_queries
    return None if hits is None or not queries else hits / queries
