"""What a request may not ask of an engine of another project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from card.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    seeded                    the client gave a seed
    likeliest                 likeliest ids of each position
    prompt_log_probabilities  those of the prompt's tokens too
    guided                    a guide says what the text must be
    """

    parameters: SamplingParameters
    seeded: bool = False
    log_probabilities: bool = False
    likeliest: int = 0
    prompt_log_probabilities: bool = False
    guided: bool = False


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A parameter that stands in the way, by its name in a request.

    allowed  what may be sent instead
    ignored  whether the engine does not honour it even without speculation
    """

    field: str
    allowed: str
    ignored: bool = False


class GuestRules(Protocol):
    """What one engine makes of requests.

    title    name of the engine in messages
    ngrams   n-grams may be among its candidates
    refuses  a request that cannot be had together with candidates is refused; else the request is
             decoded without candidates
    """

    @property
    def title(self) -> str: ...

    @property
    def ngrams(self) -> bool: ...

    @property
    def refuses(self) -> bool: ...

    def obstacles(self, asked: Asked) -> list[Obstacle]:
        """The parameters that the request cannot have together with candidates, or at all."""
