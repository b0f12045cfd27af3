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

RowCount = Annotated[int, Field(ge=1, le=64)]


class SpeculationSettings(Section):
    """How the draft grows its tree and what the target takes from it."""

    decoding: Annotated[str, OneOf(PACINGS)] = "auto"
    """Used when a request names none; ``auto``: before each pass the controller chooses among the
    draft, beside the target or in turns with it, n-grams and neither, by what it measures."""
    drafter: Annotated[str, OneOf(("auto", *DRAFTERS, *WITHOUT_DRAFT))] = "auto"
    """What makes candidates in the draft's process; ``auto``: what suits the draft's engine.
    ``hierarchy`` needs a `draft_small` too.
    ``ngram`` or ``phrases``: no draft is loaded, and the target proposes by itself (Cacheback)."""
    parcel: Annotated[int, Field(ge=1, le=16)] = 4
    """Tokens that `draft_small` writes for one review by the draft (`drafter: hierarchy`);
    ``scripts/plan hierarchy`` says how many are best."""
    proposals: Annotated[str, OneOf(WITHOUT_DRAFT)] = "ngram"
    """What the target adds to a query by itself: what followed the last few tokens before, or
    ``phrases``: that, and what it said behind candidates that it rejected (Ouroboros)."""
    ngram_table: Path | Literal["auto"] | None = "auto"
    """Table of what usually follows what, made from a corpus by ``scripts/ngrams`` for this
    target's vocabulary; ``auto``: the file ``ngrams.npz`` in the target's folder, if there is one;
    null: none."""
    shared_ngrams: bool = False
    """Whether proposals may come from earlier texts with the same `cache_salt`. How fast a text
    comes then tells a little of those: see SECURITY.md."""
    growth: Annotated[str, OneOf(GROWTHS)] = "best_first"
    """Which nodes a draft pass expands (docs/speculation.md); a pacing may come with a rule of its
    own."""
    siblings: Annotated[tuple[Annotated[int, Field(ge=1, le=8)], ...], Field(min_length=1)] = (
        4,
        2,
        2,
    )
    """Children of a node by its depth, the text's end first; `growth: sampled` grows as deep as
    this list is long."""
    fan_out: Annotated[int, Field(ge=1, le=7)] = 3
    """Tokens beside a chain's own that `growth: fan_out` prepares for at each place."""
    doubt: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Probability up to which a token is doubtful, so that `growth: branch` branches there."""
    doubt_branches: Annotated[int, Field(ge=2, le=8)] = 3
    """Branches of a token that the draft gives next to no probability; 2 at least of any that is
    doubtful."""
    shared_tokens: Annotated[int, Field(ge=1, le=8)] = 2
    """Last tokens that must agree for nodes to share what is below them (`growth: graph`)."""
    width: Annotated[int, Field(ge=1, le=32)] = 4
    """Nodes that one draft pass expands, at most: fewer where the chances of more do not outweigh
    what their rows cost on this machine, and for sessions that share a pass. With `rows` a number
    always so many."""
    depth: Annotated[int, Field(ge=1, le=128)] = 32
    """How many tokens the tree may run ahead of what is committed."""
    ngram_tokens: Annotated[int, Field(ge=0, le=16)] = 6
    """N-gram proposals, at most: behind a chain that leaves rows of a target pass unused, behind a
    text that the draft has just read, and (two at most) behind the likeliest node of a draft pass;
    0: none. While a text repeats itself so well that the draft is stopped, proposals fill all rows
    that are worth it."""
    query: Annotated[str, OneOf(SHAPES)] = "chain"
    """What the target verifies in a pass: one path of the tree, or up to `branches` paths."""
    branches: Annotated[int, Field(ge=1, le=8)] = 4
    """Most root-to-leaf paths of a subtree query; for each, `engine: torch` on a processor keeps a
    replica of the target's KV cache."""
    rows: RowCount | Literal["auto"] = "auto"
    """Rows of one target pass (the last committed token and its candidates); ``auto`` chooses from
    the cost curve measured at load."""
    control: Annotated[str, OneOf(("auto", *CONTROLLERS))] = "auto"
    """What decides whether the draft works, and how many rows a pass has; ``auto``: `measured`, or
    `fixed` where `rows` is a number."""
    acceptance: Annotated[str, OneOf(name for name, rule in RULES.items() if rule.lossless)] = (
        "exact"
    )
    """What makes a candidate final."""
    lossy_acceptance: tuple[
        Annotated[str, OneOf(name for name, rule in RULES.items() if not rule.lossless)], ...
    ] = ()
    """Rules that change the text, which a request may ask for by name; none unless listed here."""
    loose_entropy: Annotated[float, Field(ge=0, le=1)] = 0.3
    """`loose` keeps a candidate that is not the target's choice only where the entropy of the
    target's distribution is at least this share of the largest there can be (θ)."""
    loose_window: Annotated[int, Field(ge=0, le=62)] = 6
    """Candidates that must be the target's choices behind one that is not, for `loose` to keep it
    (W); `rows` must have room for two more."""
    num_draft_tokens: Annotated[int, Field(ge=1, le=32)] = 8
    """Chain length of draft-then-verify, PEARL, SpecBranch and SSD."""

    @property
    def paths(self) -> int:
        """Most root-to-leaf paths of a query."""
        return 1 if SHAPES[self.query].is_chain else self.branches
