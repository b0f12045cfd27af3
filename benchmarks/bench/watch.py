"""Who was busy when, and what every target step brought; for runs that are not timed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from card.cache import CardSlot
from card.decoding import TargetLoop, TargetTimes
from card.drafting import DraftLoop, DraftTimes

Interval = tuple[int, int]
"""Beginning and end in nanoseconds of the clock that all processes share."""


@dataclass(frozen=True, slots=True)
class Step:
    """One target pass behind the first token.

    committed  tokens, the target's own included
    drafted    candidates that were verified
    hit        its query gave candidates
    """

    committed: int
    drafted: int
    hit: bool

    @property
    def corrects(self) -> bool:
        """Whether it committed another token than the one that was drafted there."""
        return self.committed - 1 < self.drafted


@dataclass(frozen=True, slots=True)
class Account:
    """What one loop did between the beginning of its first pass and the end of its last.

    pass_ms  milliseconds of a pass by phase
    phases   share of the time by phase; `waits`: sessions were open, but there was nothing to do
    """

    model: str
    passes: int
    pass_ms: dict[str, float]
    phases: dict[str, float]

    @classmethod
    def of(
        cls, model: str, passes: list[Interval], spent_ns: dict[str, int], waited_ns: int
    ) -> Account:
        span_ns = passes[-1][1] - passes[0][0]
        return cls(
            model,
            len(passes),
            {phase: ns / 1e6 / len(passes) for phase, ns in spent_ns.items()},
            {phase: ns / span_ns for phase, ns in {**spent_ns, "waits": waited_ns}.items()},
        )

    @property
    def known(self) -> float:
        """Share of the time that the phases add up to."""
        return sum(self.phases.values())


@dataclass
class Watch:
    """What was seen, in order."""

    target_passes: list[Interval] = field(default_factory=list)
    draft_passes: list[Interval] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    target_times: TargetTimes = field(default_factory=TargetTimes)
    draft_times: DraftTimes = field(default_factory=DraftTimes)

    def target(self, loop: TargetLoop, slot: CardSlot) -> WatchedTarget:
        self.target_times = loop.times
        return WatchedTarget(loop, slot, self)

    def draft(self, loop: DraftLoop) -> WatchedDraft:
        self.draft_times = loop.times
        return WatchedDraft(loop, self)

    @property
    def hit_rate_after_corrections(self) -> float | None:
        """Share of the queries right behind a correction that gave candidates."""
        behind = [
            now.hit for before, now in zip(self.steps, self.steps[1:], strict=False)
            if before.corrects
        ]  # fmt: skip
        return sum(behind) / len(behind) if behind else None

    def accounts(self) -> list[Account]:
        """Where the time of both loops went."""
        target, draft = self.target_times, self.draft_times
        return [
            Account.of(
                "target",
                self.target_passes,
                {"query": target.query, "forward": target.forward, "walk": target.walk},
                target.waiting,
            ),
            Account.of(
                "draft",
                self.draft_passes,
                {"choose": draft.choose, "forward": draft.forward, "grow": draft.grow},
                draft.idle,
            ),
        ]

    def committed_histogram(self) -> dict[int, int]:
        """Steps by the tokens they committed."""
        found: dict[int, int] = {}
        for step in self.steps:
            found[step.committed] = found.get(step.committed, 0) + 1
        return dict(sorted(found.items()))


class WatchedTarget:
    """A target loop that notes when it is busy and what its steps bring to one slot."""

    def __init__(self, loop: TargetLoop, slot: CardSlot, watch: Watch) -> None:
        self._loop = loop
        self._slot = slot
        self._watch = watch

    @property
    def times(self) -> TargetTimes:
        return self._loop.times

    @property
    def is_at_rest(self) -> bool:
        return self._loop.is_at_rest

    def step(self) -> bool:
        before = self._slot.counters()
        began = time.perf_counter_ns()
        ran = self._loop.step()
        if not ran:
            return False
        self._watch.target_passes.append((began, time.perf_counter_ns()))
        after = self._slot.counters()
        # Prefill commits nothing or, with the prompt's end, without a query.
        if after.steps == before.steps + 1 and after.queries > before.queries:
            accepted = after.accepted - before.accepted
            drafted = after.drafted - before.drafted
            step = Step(accepted + 1, drafted, after.hits > before.hits)
            self._watch.steps.append(step)
        return True


class WatchedDraft:
    """A draft loop that notes when it is busy."""

    def __init__(self, loop: DraftLoop, watch: Watch) -> None:
        self._loop = loop
        self._watch = watch

    @property
    def times(self) -> DraftTimes:
        return self._loop.times

    @property
    def is_at_rest(self) -> bool:
        return self._loop.is_at_rest

    def step(self) -> bool:
        began = time.perf_counter_ns()
        ran = self._loop.step()
        if ran:
            self._watch.draft_passes.append((began, time.perf_counter_ns()))
        return ran
