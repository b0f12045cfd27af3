"""What a controller decides before each pass of the target, and what it hears afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from card.cache import LEAST_CHANCE, Candidates
from card.sampling import SamplingParameters


class Proposals(Protocol):
    """The n-grams of one text; see `NgramProposer`."""

    @property
    def hit_rate(self) -> float: ...

    def propose(self, behind: Sequence[int], limit: int) -> list[int]: ...


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
    def proposer(self) -> Proposals:
        """It has read the whole text."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a pass does for one session.

    drafts        the draft, or a device, works for it, and its tree is asked
    num_rows      rows that it may ask candidates for, the last committed token's included
    ngram_tokens  n-gram proposals behind what the tree gave, at most
    is_remote     a device works for it, not the draft
    least_chance  proposals that are less likely are worth no row
    """

    drafts: bool
    num_rows: int
    ngram_tokens: int
    is_remote: bool = False
    least_chance: float = LEAST_CHANCE

    @property
    def num_candidates(self) -> int:
        return self.num_rows - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one pass.

    shares  of each session, in order. Together with its pacing a share says how a session is
            decoded: plainly (one row), by n-grams (it does not draft), or as its pacing has it
    most_rows  rows of all sessions together, if each has one; None: any number
    kind       of the sessions, as the controller tells them apart
    prepares   the draft reads the prompts of those that read theirs
    """

    shares: list[Share]
    most_rows: int | None = None
    kind: tuple[int, ...] = ()
    prepares: bool = True

    @property
    def drafts(self) -> bool:
        """Whether the draft works for any session."""
        return any(share.drafts and not share.is_remote for share in self.shares)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass gave one session.

    drafted   candidates that the draft's tree gave, found before any was left out
    verified  candidates in the pass
    accepted  of these
    rejected  one of them was wrong
    chances   of the verified ones to be accepted, as they were ranked
    """

    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    rejected: bool = False
    chances: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """What controllers go by.

    num_rows      rows of each session in a pass; None: as many as pay
    ngram_tokens  n-gram proposals behind a chain, at most
    is_chain      candidates are chains, of which any beginning may be verified
    costs_ms      measured milliseconds of a target pass by its rows, while nobody else computes on
                  the cores that it leaves to the draft; empty: not measured
    alone_share   share of its time that a pass takes where it has the draft's cores too
    """

    num_rows: int | None = None
    ngram_tokens: int = 0
    is_chain: bool = True
    costs_ms: Mapping[int, float] | None = None
    alone_share: float = 1.0


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
        reading: Sequence[ControlledSession] = (),
        most_rows: int | None = None,
    ) -> Plan:
        """For the sessions that share the next pass.

        reading    those beside them that still read their prompts
        most_rows  rows of all of them together, if each has one; None: any number
        """

    def trim(
        self, plan: Plan, sessions: Sequence[ControlledSession], found: Sequence[Candidates]
    ) -> list[int]:
        """How many of its candidates each session verifies."""

    def observe(
        self,
        plan: Plan,
        sessions: Sequence[ControlledSession],
        outcomes: Sequence[Outcome],
        seconds: float | None,
    ) -> None:
        """What the pass gave, and how long it took with all that lay between it and the one before;
        None: it cannot be compared with others."""

    def forget(self, session: ControlledSession) -> None:
        """A session has ended."""
