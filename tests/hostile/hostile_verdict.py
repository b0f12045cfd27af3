"""What each kind did to others, and which promises that breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from honest_streams import Events, Seen
from hostile_kinds import Kind
from rich.table import Table

LEAST_RATIO = 0.8
HEALTH_S = 1.0
GUIDE_S = 10.0
"""A new honest guide waits at most so long."""
MOST_GROWN_MIB = 32.0
"""By the last window of a kind: the first one pays for buffers and caches that are filled once."""
MOST_PEAK_MIB = 256.0
MOST_SERIES = 32
"""By the last window of a kind: closed sets are filled as their members first occur."""


@dataclass(frozen=True)
class Span:
    """A time, of `time.monotonic`."""

    start_s: float
    end_s: float = float("inf")

    def of(self, events: Events) -> list[float]:
        """The values of events in this time."""
        return [value for at_s, value in events if self.start_s <= at_s < self.end_s]


@dataclass
class Found:
    """What one kind did.

    answers    how often each outcome came
    harmless   times of the harmless load; `hostile` those of the attack
    aftermath  the latter, each up to where the service was well again
    held       MiB of every process before the kind, and behind each attack
    series     metric series at the same times
    peak_mib   the most that all processes held at once
    """

    kind: Kind
    answers: Counter[str] = field(default_factory=Counter)
    harmless: list[Span] = field(default_factory=list)
    hostile: list[Span] = field(default_factory=list)
    aftermath: list[Span] = field(default_factory=list)
    held: list[Mapping[str, float]] = field(default_factory=list)
    series: list[int] = field(default_factory=list)
    peak_mib: float = 0.0

    def ratio(self, seen: Seen) -> float:
        """Honest tokens a second beside the attack, by those beside the harmless load."""
        return _rate(self.hostile, seen) / max(_rate(self.harmless, seen), 1e-9)

    def worst(self, events: Events) -> float:
        """The largest value of events during the attacks and behind them."""
        return max((value for span in self.aftermath for value in span.of(events)), default=0.0)

    @property
    def grown_mib(self) -> dict[str, float]:
        """What the last attack added to each process."""
        return {name: mib - self.held[-2].get(name, 0) for name, mib in self.held[-1].items()}

    @property
    def risen_mib(self) -> float:
        """The most that all held beyond what they held before."""
        return self.peak_mib - sum(self.held[0].values())

    def broken(self, seen: Seen) -> list[str]:
        """The promises that this kind broke, in words."""
        grown = ", ".join(f"{name} {mib:+.0f}" for name, mib in self.grown_mib.items() if mib >= 1)
        bad = {what: count for what, count in self.answers.items() if self.kind.forbids(what)}
        series = self.series[-1] - self.series[-2]
        promises = (
            (self.ratio(seen) >= LEAST_RATIO, f"honest tokens/s fell to {self.ratio(seen):.2f}"),
            (self.worst(seen.healths) <= HEALTH_S, f"/health: {self.worst(seen.healths):.1f} s"),
            (self.worst(seen.guides) <= GUIDE_S, f"a new guide: {self.worst(seen.guides):.1f} s"),
            (sum(self.grown_mib.values()) <= MOST_GROWN_MIB, f"memory grew (MiB): {grown}"),
            (self.risen_mib <= MOST_PEAK_MIB, f"memory rose by {self.risen_mib:.0f} MiB"),
            (series <= MOST_SERIES, f"{series} new metric series"),
            (not bad, f"answers that must not be: {_counted(bad)}"),
        )
        wrong = [what for span in self.aftermath for at_s, what in seen.wrong if _in(at_s, span)]
        return [*(what for kept, what in promises if not kept), *dict.fromkeys(wrong)]


def kinds_table(found: Sequence[Found], seen: Seen) -> Table:
    """A row for each kind."""
    headings = ("kind", "sent", "answers", "honest", "gap s", "/health s", "guide s", "MiB", "peak")
    table = Table(*headings, "verdict", title="What others met", padding=(0, 0))
    for one in found:
        worst = [one.worst(events) for events in (seen.gaps, seen.healths, seen.guides)]
        table.add_row(
            one.kind.name,
            str(one.answers.total()),
            _counted(one.answers),
            f"{one.ratio(seen):.2f}",
            *(f"{value:.2f}" for value in worst),
            *(f"{mib:+.0f}" for mib in (sum(one.grown_mib.values()), one.risen_mib)),
            "BROKEN" if one.broken(seen) else "kept",
        )
    return table


def _in(at_s: float, span: Span) -> bool:
    return span.start_s <= at_s < span.end_s


def _rate(spans: Sequence[Span], seen: Seen) -> float:
    tokens = sum(sum(span.of(seen.tokens)) for span in spans)
    return tokens / sum(span.end_s - span.start_s for span in spans)


def _counted(outcomes: Mapping[str, int]) -> str:
    ordered = sorted(outcomes.items(), key=lambda item: -item[1])
    return ", ".join(f"{outcome} {count}" for outcome, count in ordered)
