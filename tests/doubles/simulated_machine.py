"""The real loops on a simulated clock: a machine is what passes cost on it.

While the target's engine computes a pass, the clock moves on and the draft's loop makes the passes
that fit into that time. So texts, candidates and decisions are the product's own, and time is the
machine's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from fake_engine import FakeEngine, FakeModel, _mix
from one_process import OneProcess, Stream, settings_of

from card.cache import Finish, SlotRequest
from card.engines import Logits, SequenceTokens
from card.engines.interface import COSTED_ROWS, MOST_CHOSEN, pass_cost_ms

_WAIT_NS = 50_000
"""Between two looks of a target that waits."""
_MOST_STEPS = 200_000


@dataclass(frozen=True)
class Machine:
    """Milliseconds of passes.

    alone   of the target by its rows, while the draft rests
    beside  of the target by its rows, while the draft works
    draft   of the draft while the target rests, and while it works
    step    that Python takes around each pass
    apart   the draft has a device of its own
    """

    alone: Mapping[int, float]
    beside: Mapping[int, float]
    draft: tuple[float, float]
    step: float = 0.4
    apart: bool = False


@dataclass(frozen=True)
class RepeatingModel(FakeModel):
    """Logits depend on the last two tokens alone behind a share of the texts.

    repeats  that share: so often a text goes on as it did before
    """

    repeats: float = 0.0

    def extended(self, path: int, token: int) -> int:
        last = ((path & 0xFFFF) * self.vocabulary + token + 1) % self.vocabulary**2
        return (super().extended(path >> 16, token) >> 16) << 16 | last

    def row(self, path: int) -> Any:
        repeats = _mix(path >> 16 ^ 0xABCDEF) / 2.0**64 < self.repeats
        return super().row(path & 0xFFFF if repeats else path)


@dataclass
class Load:
    """What load believed of a machine.

    wrong  by which factor rows were timed wrong, by their number and between them
    """

    wrong: Mapping[int, float] = field(default_factory=dict)

    def costs(self, machine: Machine) -> dict[int, float]:
        return {
            rows: pass_cost_ms(machine.beside, rows) * pass_cost_ms(self.wrong or {1: 1.0}, rows)
            for rows in COSTED_ROWS
            if rows <= MOST_CHOSEN
        }


class _Target(FakeEngine):
    def __init__(self, model: FakeModel, world: SimulatedMachine, **options: Any) -> None:
        super().__init__(model, tree=False, **options)
        self._world = world

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        self._world.compute_target(sum(len(rows.tokens) for rows in batch), alone=alone)
        return super().forward(batch, alone=alone)


class _Draft(FakeEngine):
    def __init__(self, model: FakeModel, world: SimulatedMachine, **options: Any) -> None:
        super().__init__(model, tree=True, **options)
        self._world = world

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        self._world.compute_draft()
        return super().forward(batch, alone=alone)


class SimulatedMachine:
    """A server on a machine, as a context. Its controller remembers what it saw."""

    def __init__(
        self,
        machine: Machine,
        *,
        agreement: float,
        repeats: float = 0.0,
        load: Load | None = None,
        seed: int = 1,
        noise: float = 0.08,
        slots: int = 1,
        **speculation: Any,
    ) -> None:
        self.machine = machine
        self.now_ns = 10**12
        self._draft_ns = 0
        self._pass_of_draft_ns = 0
        self._in_target = False
        self._random = random.Random(seed)
        self._noise = noise
        self.draft_pauses_ms = 0.0
        self.draft_lives = True
        self.last_text: list[int] = []
        self.first_tokens_ms: list[float] = []
        target = RepeatingModel(24, seed=seed, repeats=repeats)
        drafting = RepeatingModel(24, seed=seed, agreement=agreement, repeats=repeats)
        options = {"sessions": slots + 1, "context": 1 << 12}
        self._target = _Target(target, self, **options)
        self._draft = _Draft(drafting, self, **options)
        load = load or Load()
        self._target.row_costs_ms = load.costs(machine)
        first = min(machine.alone)
        self._target.alone_share = machine.alone[first] / machine.beside[first]
        self._settings = settings_of(
            rows="auto", slots=slots, nodes=256, ngram_tokens=6, depth=32, width=4, **speculation
        )
        if machine.apart:
            draft = self._settings.draft.model_copy(update={"device": "cuda:1"})
            self._settings = self._settings.model_copy(update={"draft": draft})

    def __enter__(self) -> SimulatedMachine:
        clocks = {
            "time.monotonic": lambda: self.now_ns / 1e9,
            "time.monotonic_ns": lambda: self.now_ns,
            "time.perf_counter": lambda: self.now_ns / 1e9,
            "time.perf_counter_ns": lambda: self.now_ns,
        }
        with ExitStack() as stack:
            for name, clock in clocks.items():
                stack.enter_context(patch(name, clock))
            both = OneProcess(
                self._target,
                self._draft,
                self._settings,
                apart=self.machine.apart,
                draft_pass_ms=self.machine.draft[0],
            )
            self.both = stack.enter_context(both)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- the clock ----------------------------------------------------------------------------

    def compute_target(self, rows: int, *, alone: bool) -> None:
        """A pass of the target; the draft works meanwhile, as far as it wants to."""
        costs = self.machine.alone if alone else self.machine.beside
        ms = pass_cost_ms(costs, rows) * self._random.uniform(1 - self._noise, 1 + self._noise)
        end_ns = self.now_ns + int(1e6 * (ms + self.machine.step))
        self._in_target = True
        self._run_draft(end_ns)
        self._in_target = False
        self.now_ns = end_ns

    def compute_draft(self) -> None:
        """A pass of the draft."""
        ms = self.machine.draft[self._in_target] + self.draft_pauses_ms
        self._pass_of_draft_ns += int(1e6 * ms)

    def _run_draft(self, end_ns: int) -> None:
        self._draft_ns = max(self._draft_ns, self.now_ns)
        while self.draft_lives and self._draft_ns < end_ns:
            self._pass_of_draft_ns = 0
            if not self.both.draft.step():
                self._draft_ns = end_ns  # it sleeps until a bell rings
                break
            self._draft_ns += self._pass_of_draft_ns or _WAIT_NS

    # --- texts --------------------------------------------------------------------------------

    def write(self, requests: Sequence[SlotRequest], apart_ms: float = 0.0) -> float:
        """Milliseconds until all of these texts are written; each begins so long after the one
        before. `first_tokens_ms` then says how long each text waited for its first token."""
        both, began = self.both, self.now_ns
        streams: list[Stream] = []
        opened: list[int] = []
        first: dict[int, float] = {}
        for _ in range(_MOST_STEPS):
            while len(streams) < len(requests) and (
                self.now_ns >= began + 1e6 * apart_ms * len(streams)
            ):
                opened.append(self.now_ns)
                streams.append(both.open(requests[len(streams)], len(streams)))
            if len(streams) == len(requests) and all(
                stream.finish is not Finish.RUNNING for stream in streams
            ):
                break
            both.revive_draft() if self.draft_lives else both.kill_draft()
            before = self.now_ns
            if not both.target.step():
                self._run_draft(self.now_ns + _WAIT_NS)
                self.now_ns = max(before + _WAIT_NS, self._draft_ns)
            for index, stream in enumerate(streams):
                if index not in first and stream.slot.committed(stream.session_id):
                    first[index] = (self.now_ns - opened[index]) / 1e6
        else:
            raise AssertionError("the texts have no end")
        taken = (self.now_ns - began) / 1e6
        self.first_tokens_ms = [first[index] for index in range(len(streams))]
        self.last_text = streams[-1].output
        both.close(streams)
        return taken
