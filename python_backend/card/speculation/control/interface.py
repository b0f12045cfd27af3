"""What a controller decides before each pass of the target, and what it hears afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from card.cache import LEAST_CHANCE, Candidates
from card.sampling import SamplingParameters
from card.speculation.acceptance import Outcome


class ControlledSession(Protocol):
    """One session as controllers see it.

    number  of the session, until it is closed
    """

    @property
    def number(self) -> int: ...

    @property
    def parameters(self) -> SamplingParameters: ...

    @property
    def queries(self) -> bool:
        """It may have candidates."""

    @property
    def drafts(self) -> bool:
        """The draft, or a device, makes candidates for it."""

    @property
    def is_remote(self) -> bool:
        """Its candidates are made elsewhere and cost no time here: nothing here stops that."""

    @property
    def adapts(self) -> bool:
        """Whether the controller may stop the draft for it."""

    @property
    def takes_turns(self) -> bool:
        """Whether the controller may let the target wait for the draft."""


class Share(NamedTuple):
    """What a pass does for one session.

    drafts        the draft, or a device, works for it, and its tree is asked
    num_rows      rows that it may ask candidates for, the last committed token's included
    ngram_tokens  n-gram proposals behind what the tree gave, at most
    is_remote     a device works for it, not the draft
    least_chance  proposals that are less likely are worth no row
    awaited       passes of the draft, below what this pass commits, for which the next one waits;
                  0: it does not wait
    patience_s    for which it waits at most
    """

    drafts: bool
    num_rows: int
    ngram_tokens: int
    is_remote: bool = False
    least_chance: float = LEAST_CHANCE
    awaited: int = 0
    patience_s: float = 0.0


class StepPlan(NamedTuple):
    """Of one pass.

    shares  of each session, in order. Together with its pacing a share says how a session is
            decoded: plainly (one row), by n-grams (it does not draft), or as its pacing has it
    most_rows  rows of all sessions together, if each has one; None: any number
    kind       of the sessions, as the controller tells them apart
    prepares   the draft will work for those that read their prompts now
    """

    shares: list[Share]
    most_rows: int | None = None
    kind: tuple[int, ...] = ()
    prepares: bool = True


CONTENTION = 1.2
"""How much longer a pass takes beside a working draft, until one was seen."""


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """What controllers go by.

    num_rows      rows of each session in a pass; None: as many as pay
    ngram_tokens  n-gram proposals behind a chain, at most
    costs_ms      measured milliseconds of a target pass by its rows, while nothing else computes on
                  the cores that it leaves to the draft; a controller that chooses rows needs them
    alone_share   share of its time that a pass takes where it has the draft's cores too
    apart         the draft has a device of its own, so a pass beside it takes no longer
    """

    num_rows: int | None = None
    ngram_tokens: int = 0
    costs_ms: Mapping[int, float] = field(default_factory=dict)
    alone_share: float = 1.0
    apart: bool = False

    @property
    def shares(self) -> tuple[float, float]:
        """Of `costs_ms`: what a pass takes on all cores, and beside a working draft."""
        return self.alone_share, 1.0 if self.apart else CONTENTION


class Controller(Protocol):
    """Decides what pays. One thread calls it.

    chooses_rows  it finds out how many rows pay; else the settings say how many a pass has
    """

    chooses_rows: ClassVar[bool]

    def __init__(self, config: ControlConfig) -> None: ...

    def plan(
        self,
        sessions: Sequence[ControlledSession],
        *,
        draft_lives: bool,
        draft_pass_ms: float = 0.0,
        reading: Sequence[ControlledSession] = (),
        most_rows: int | None = None,
    ) -> StepPlan:
        """For the sessions that share the next pass.

        draft_pass_ms  milliseconds of a pass of the draft alone; 0: unknown
        reading    those beside them that still read their prompts
        most_rows  rows of all of them together, if each has one; None: any number
        """

    def trim(
        self,
        plan: StepPlan,
        sessions: Sequence[ControlledSession],
        found: Sequence[Candidates],
        drafted: Sequence[int],
        *,
        beside: bool,
    ) -> list[int]:
        """How many of its candidates each session verifies.

        drafted  how many of each session's candidates the draft's tree gave: the first ones
        beside   the draft computes while the pass does
        """

    def observe(
        self,
        plan: StepPlan,
        sessions: Sequence[ControlledSession],
        outcomes: Sequence[Outcome],
        seconds: float | None,
        waited_s: float = 0.0,
        *,
        beside: bool,
    ) -> None:
        """What the pass gave, and how long it took; None: it cannot be compared with others.

        waited_s  for which it had waited for the draft
        """

    def forget(self, session: ControlledSession) -> None:
        """A session has ended."""
