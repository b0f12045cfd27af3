"""What several contenders made of the same texts, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bench.contest import Completion, Contender
from bench.measurement import Measurement


class Group:
    """All completions at one temperature, by contender and then by prompt and round."""

    def __init__(self, completions: Sequence[Completion]) -> None:
        self.results: dict[Contender, dict[tuple[str, int], Completion]] = {}
        for completion in completions:
            visit = completion.task.prompt.id, completion.round
            self.results.setdefault(completion.contender, {})[visit] = completion

    def speeds(self, contender: Contender) -> list[float]:
        return [c.measurement.tokens_per_s for c in self.results[contender].values()]

    def fastest(self, system: str, where: str) -> Contender:
        return max(
            (c for c in self.results if (c.system, c.where) == (system, where)),
            key=lambda contender: median(self.speeds(contender)),
        )

    def ratio(self, contender: Contender, to: Contender) -> float:
        """Median over prompts and rounds of tokens/s of one to that of the other."""
        return median(
            one.tokens_per_s / other.tokens_per_s for one, other in self._pairs(contender, to)
        )

    def decoding_ratio(self, contender: Contender, to: Contender) -> float | None:
        """The same behind the first token; None where no text has more than that one."""
        found = [
            ours / theirs
            for one, other in self._pairs(contender, to)
            if (ours := one.decoding_tokens_per_s) and (theirs := other.decoding_tokens_per_s)
        ]
        return median(found) if found else None

    def _pairs(self, one: Contender, other: Contender) -> Iterator[tuple[Measurement, Measurement]]:
        """What both measured of the same prompt in the same round."""
        others = self.results[other]
        for visit, completion in self.results[one].items():
            if visit in others:  # a setting that was left behind has fewer texts
                yield completion.measurement, others[visit].measurement


def median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))
