"""The family: systems of the literature, each as settings of ours (`benchmarks/README.md`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from card.settings import GUESTS, Settings
from card.speculation.acceptance import RULES
from card.speculation.drafters import DRAFTERS
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card.speculation.sources import WITHOUT_DRAFT


@dataclass(frozen=True)
class System:
    """One system, as we build it.

    decoding     key of `PACINGS`
    acceptance   key of `RULES`
    speculation  settings of the section `speculation` that differ
    gammas       draft tokens before a verification that are tried, where the pacing waits for them
    on_a_device  a device drafts, and a server verifies
    """

    decoding: str = "card"
    acceptance: str = "exact"
    speculation: Mapping[str, Any] = field(default_factory=dict)
    gammas: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    on_a_device: bool = False

    @property
    def lossless(self) -> bool:
        """Whether it promises the text of the target alone."""
        return RULES[self.acceptance].lossless


_TURNS = "draft_then_verify"

SYSTEMS: dict[str, System] = {
    "autoregressive": System("autoregressive"),
    "draft_then_verify": System(_TURNS),
    "pearl": System("pearl"),
    "card": System(),
    "auto": System("auto"),
    "cacheback": System(speculation={"drafter": "ngram"}),
    "ouroboros": System(_TURNS, speculation={"proposals": "phrases", "shared_ngrams": True}),
    "cascade": System(
        _TURNS, speculation={"drafter": "cascade", "ngram_tokens": 10}, gammas=(1, 2, 3, 4)
    ),
    "hsd": System(_TURNS, speculation={"drafter": "hierarchy", "growth": "layered"}),
    # γ is as deep as its tree grows.
    "mcsd": System(_TURNS, speculation={"growth": "sampled", "width": 8}, gammas=(1, 2, 3)),
    "gsd": System(_TURNS, speculation={"growth": "graph", "width": 4}),
    "specbranch": System("branch", speculation={"width": 4}),
    "ssd": System("ssd", speculation={"width": 12}),
    "sled": System(_TURNS, gammas=(2, 4, 8), on_a_device=True),
    "fly": System(acceptance="loose", speculation={"rows": 16}),
    # One pass of a draft with masks makes a block.
    "pard": System(
        _TURNS, speculation={"drafter": "parallel", "growth": "best_first"}, gammas=(4, 6, 12)
    ),
    "diffuspec": System(
        _TURNS, speculation={"drafter": "parallel", "growth": "lattice"}, gammas=(4, 6, 12)
    ),
}
"""Systems by the name in rows. The others are compared with the first."""

_HEADS = [name for name, drafter in DRAFTERS.items() if drafter.model == "head"]
SYSTEMS |= {
    name: System(_TURNS, speculation={"drafter": name}, gammas=(2, 4, 6)) for name in _HEADS
}
# Heads on the target's hidden states, in turns as they were published; `card` runs them beside it.


def _unused() -> dict[str, System]:
    """A system for each registry key that no system above uses, with CARD's other parts."""
    registries = (PACINGS, RULES, DRAFTERS, GROWTHS, WITHOUT_DRAFT)
    used = {next(iter(registry)) for registry in registries}
    used |= {pacing.growth for pacing in PACINGS.values() if pacing.growth is not None}
    for system in SYSTEMS.values():
        used |= {system.decoding, system.acceptance, *map(str, system.speculation.values())}
    ours = [name for name, it in DRAFTERS.items() if it.model not in GUESTS]
    found = {name: System(name) for name in PACINGS}
    found |= {name: System(acceptance=name) for name in RULES}
    for setting, keys in (("drafter", ours), ("growth", GROWTHS), ("proposals", WITHOUT_DRAFT)):
        found |= {name: System(speculation={setting: name}) for name in keys}
    return {name: system for name, system in found.items() if name not in used}


SYSTEMS |= _unused()


def systems_for(settings: Settings) -> dict[str, System]:
    """The systems that this pair can run, as their papers have them: a draft makes one token a
    pass, but for `auto` and the systems of blocks. These need a draft with masks. A head on the
    target's hidden states has its own way to draft."""
    if settings.has_head:
        own = settings.drafter
        return {
            name: replace(system, speculation={"drafter": own, **system.speculation})
            for name, system in SYSTEMS.items()
            if system.speculation.get("drafter", own) == own
        }
    lacking = {*_HEADS, *([] if settings.draft.mask_ids else ["parallel"])}
    return {
        name: system if name == "auto" else _step_by_step(system)
        for name, system in SYSTEMS.items()
        if system.speculation.get("drafter") not in lacking
    }


def _step_by_step(system: System) -> System:
    return replace(system, speculation={"drafter": "tree", **system.speculation})
