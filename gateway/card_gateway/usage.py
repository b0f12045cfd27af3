"""What an answer took: tokens as OpenAI counts them, and what speculation made of them."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Literal

from card_gateway.generation import Piece


class Usage:
    """Of all texts of one answer so far.

    per_prompt  texts that are generated for each prompt, which counts once
    """

    def __init__(self, per_prompt: int = 1) -> None:
        self._per_prompt = per_prompt
        self._last: dict[int, Piece] = {}

    def note(self, piece: Piece) -> None:
        """Counts of a piece are totals of its text so far."""
        self._last[piece.index] = piece

    @property
    def prompt_tokens(self) -> int:
        return sum(last.prompt_tokens for last in self._by_prompt.values())

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens with KV that the server had kept."""
        return sum(last.cached_tokens for last in self._by_prompt.values())

    @property
    def _by_prompt(self) -> dict[int, Piece]:
        """Of each prompt the piece of its first text: for the others its KV was kept."""
        latest = sorted(self._last.items(), reverse=True)
        return {index // self._per_prompt: last for index, last in latest}

    @property
    def completion_tokens(self) -> int:
        return self.total("completion_tokens")

    def total(
        self,
        name: Literal["completion_tokens", "steps", "drafts", "drafted", "accepted", "foreign"],
    ) -> int:
        """Of all texts, a count of `Piece`."""
        return sum(getattr(last, name) for last in self._last.values())

    @property
    def accepted_at(self) -> list[int]:
        """Accepted candidates by place: the first of all passes, the second ones, and so on."""
        histograms = (last.accepted_at for last in self._last.values())
        return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]

    def as_json(self) -> dict[str, Any]:
        """OpenAI's object, and in `speculation` what it has no name for; without either where the
        server does not tell."""
        found: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if steps := self.total("steps"):
            drafted, accepted = self.total("drafted"), self.total("accepted")
            found["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
            found["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            }
            found["speculation"] = {
                "drafted": drafted,
                "accepted": accepted,
                "steps": steps,
                "tokens_per_step": round(self.completion_tokens / steps, 3),
                "foreign": self.total("foreign"),
            }
        return found
