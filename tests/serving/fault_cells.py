"""The matrix of faults: victims, blows, moments, and how often."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from enum import Enum

VICTIMS = ("draft", "target", "card", "preprocessing", "postprocessing", "server")


class Blow(Enum):
    """KILL: SIGKILL. STOP: SIGSTOP for good. PAUSE: SIGSTOP, then SIGCONT."""

    KILL = "killed"
    STOP = "stopped"
    PAUSE = "paused"


class Moment(Enum):
    """When the blow falls, as the clients see it."""

    PREFILL = "at prefill"  # of the first; other requests may still be on their way
    MID_STREAM = "mid-stream"
    IDLE = "between requests"


@dataclass(frozen=True)
class Cell:
    """One fault. `pause_s` is how long a PAUSE lasts."""

    victim: str
    blow: Blow
    moment: Moment
    times: int = 1
    pause_s: float = 1.0

    def __str__(self) -> str:
        lasting = f" for {self.pause_s:.1f} s" if self.blow is Blow.PAUSE else ""
        often = " twice in a row" if self.times == 2 else ""
        return f"{self.victim} {self.blow.value}{lasting} {self.moment.value}{often}"

    @property
    def costs_answers(self) -> bool:
        """Whether clients may get an error. No text needs the draft, streams of a lost target go on
        behind their commits, and what flows has left preprocessing behind; but where the reload
        is lost too, the server starts anew."""
        match self.victim:
            case "draft":
                return False
            case "target":
                return self.times > 1
            case "preprocessing":
                return self.times > 1 or self.moment is not Moment.MID_STREAM
        return True

    @classmethod
    def every(cls) -> list[Cell]:
        """The whole matrix."""
        return [cls(*cell) for cell in itertools.product(VICTIMS, list(Blow), list(Moment), (1, 2))]

    @classmethod
    def draw(cls, draw: random.Random) -> Cell:
        """Any cell of the matrix."""
        return cls(
            draw.choice(VICTIMS),
            draw.choice(list(Blow)),
            draw.choice(list(Moment)),
            draw.choice((1, 2)),
            draw.uniform(0.05, 4.0),
        )
