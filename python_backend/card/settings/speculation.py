"""How texts are speculated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from card.settings.section import OneOf, Section
from card.speculation.acceptance import RULES
from card.speculation.control import CONTROLLERS
from card.speculation.drafters import DRAFTERS
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card.speculation.sources import SHAPES, WITHOUT_DRAFT

_LOSSLESS = [name for name, rule in RULES.items() if rule.lossless]
_LOSSY = [name for name, rule in RULES.items() if not rule.lossless]
UpToEight = Annotated[int, Field(ge=1, le=8)]
Rows = Annotated[int, Field(ge=1, le=64)]


class SpeculationSettings(Section):
    """How the draft grows its tree, and what the target takes from it (docs/speculation.md)."""

    decoding: Annotated[str, OneOf(PACINGS)] = Field(
        "auto", description="Pacing of requests that name none; auto: what pays by measure."
    )
    drafter: Annotated[str, OneOf(("auto", *DRAFTERS, *WITHOUT_DRAFT))] = Field(
        "auto",
        description="What makes candidates. auto: what suits the draft and its engine (parallel "
        "for a draft with masks). hierarchy also "
        "needs `draft_small`. ngram and phrases load no draft: the target proposes by itself.",
    )
    parcel: int = Field(
        4, ge=1, le=16, description="Tokens that `draft_small` writes before the draft reviews."
    )
    proposals: Annotated[str, OneOf(WITHOUT_DRAFT)] = Field(
        "ngram",
        description="What the target adds by itself. ngram: what followed the last few tokens "
        "before. phrases: also what it said behind candidates that it rejected.",
    )
    ngram_table: Path | Literal["auto"] | None = Field(
        "auto",
        description="Table of frequent continuations for this target, made by `scripts/ngrams`. "
        "auto: ngrams.npz in the target's folder, if there is one. null: none.",
    )
    shared_ngrams: bool = Field(
        False, description="N-grams may come from texts with the same `cache_salt`."
    )
    growth: Annotated[str, OneOf(GROWTHS)] = Field(
        "best_first", description="Which nodes a draft pass expands."
    )
    siblings: Annotated[tuple[UpToEight, ...], Field(min_length=1)] = Field(
        (4, 2, 2), description="`growth: sampled`: children of a node by its depth."
    )
    fan_out: int = Field(
        3, ge=1, le=7, description="`growth: fan_out`: tokens beside the chain's own."
    )
    doubt: float = Field(
        0.3, ge=0, lt=1, description="`growth: branch` forks up to this probability."
    )
    doubt_branches: int = Field(
        3, ge=2, le=8, description="`growth: branch`: most forks at one token."
    )
    shared_tokens: UpToEight = Field(
        2, description="`growth: graph`: last tokens that must be equal."
    )
    block: Annotated[int, Field(ge=2, le=32)] | Literal["auto"] = Field(
        "auto",
        description="`drafter: parallel`: most tokens that one pass makes. auto: one more than the "
        "draft's masks, or 12 where one mask stands for all places.",
    )
    width: int = Field(4, ge=1, le=32, description="Most nodes that one draft pass expands.")
    depth: int = Field(
        32, ge=1, le=128, description="Tokens that the tree may run ahead of the text."
    )
    ngram_tokens: int = Field(
        6, ge=0, le=16, description="Most n-gram proposals behind a chain; 0: none."
    )
    query: Annotated[str, OneOf(SHAPES)] = Field(
        "chain", description="What a target pass verifies: one path, or `branches` paths."
    )
    branches: UpToEight = Field(4, description="Most paths of `query: subtree`.")
    rows: Rows | Literal["auto"] = Field(
        "auto",
        description="Rows of a target pass: the last committed token and its candidates. auto: "
        "what pays by the costs measured at load.",
    )
    control: Annotated[str, OneOf(("auto", *CONTROLLERS))] = Field(
        "auto",
        description="What decides whether the draft works and how many rows a pass has. auto: "
        "measured, or fixed where `rows` is a number.",
    )
    acceptance: Annotated[str, OneOf(_LOSSLESS)] = Field(
        "exact", description="What makes a candidate final."
    )
    lossy_acceptance: tuple[Annotated[str, OneOf(_LOSSY)], ...] = Field(
        (), description="Rules that change the text, which a request may ask for by name."
    )
    loose_entropy: float = Field(
        0.3, ge=0, le=1, description="`loose`: least share of the largest entropy (θ)."
    )
    loose_window: int = Field(
        6, ge=0, le=62, description="`loose`: agreeing candidates that must follow (W)."
    )
    num_draft_tokens: int = Field(
        8, ge=1, le=32, description="Chain length of draft_then_verify, pearl, branch and ssd."
    )

    @property
    def paths(self) -> int:
        """Most root-to-leaf paths of a query."""
        return 1 if SHAPES[self.query].is_chain else self.branches
