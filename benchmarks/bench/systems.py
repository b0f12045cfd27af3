"""The family: systems of the literature, each as settings of ours. `bench family` measures them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from card.speculation.acceptance import RULES
from card.speculation.drafters import DRAFTERS
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card.speculation.sources import WITHOUT_DRAFT

GAMMAS = (1, 2, 3, 4, 6, 8)

DEVICE_DELAY_S = 0.02
"""How much longer every byte takes between a device that drafts and its server, each way."""


@dataclass(frozen=True)
class System:
    """One system, as we build it.

    paper        where it is described
    claim        the speed that is claimed there, over decoding without speculation unless said
    decoding     key of `PACINGS`
    acceptance   key of `RULES`
    speculation  settings of the section `speculation` that differ
    gammas       draft tokens before a verification that are tried, where the pacing waits for them
    on_a_device  a device drafts, and a server verifies
    """

    paper: str
    claim: str
    decoding: str = "card"
    acceptance: str = "exact"
    speculation: Mapping[str, Any] = field(default_factory=dict)
    gammas: tuple[int, ...] = GAMMAS
    on_a_device: bool = False

    @property
    def lossless(self) -> bool:
        """Whether it promises the text of the target alone."""
        return RULES[self.acceptance].lossless


SYSTEMS: dict[str, System] = {
    "autoregressive": System("none", "1", decoding="autoregressive"),
    "draft_then_verify": System(
        "arXiv 2211.17192", "2 to 3 (T5-XXL)", decoding="draft_then_verify"
    ),
    "pearl": System("arXiv 2408.11850", "up to 4.43", decoding="pearl"),
    "card": System("arXiv 2508.04462", "up to 4.83"),
    "auto": System("none", "no slower than the best of what is loaded", decoding="auto"),
    "cacheback": System(
        "arXiv 2511.21699",
        "best of the methods without training or draft on SpecBench",
        speculation={"drafter": "ngram"},
    ),
    "ouroboros": System(
        "arXiv 2402.13720",
        "up to 3.9, and 2.8 over draft-then-verify",
        decoding="draft_then_verify",
        speculation={"proposals": "phrases", "shared_ngrams": True},
    ),
    "cascade": System(
        "arXiv 2312.11462",
        "up to 1.81 over draft-then-verify",
        decoding="draft_then_verify",
        speculation={"drafter": "cascade", "ngram_tokens": 10},
        gammas=(1, 2, 3, 4),
    ),
    "hsd": System(
        "arXiv 2510.19705",
        "up to 1.2 over the best single draft",
        decoding="draft_then_verify",
        speculation={"drafter": "hierarchy", "growth": "layered"},
    ),
    "mcsd": System(
        "arXiv 2401.06706",
        "more than draft-then-verify",
        decoding="draft_then_verify",
        speculation={"growth": "sampled", "width": 8},
        gammas=(1, 2, 3),  # as deep as its tree grows
    ),
    "gsd": System(
        "arXiv 2407.16207",
        "1.73 to 1.96 (70B)",
        decoding="draft_then_verify",
        speculation={"growth": "graph", "width": 4},
    ),
    "specbranch": System(
        "arXiv 2506.01979", "1.8 to 4.5", decoding="branch", speculation={"width": 4}
    ),
    "ssd": System(
        "arXiv 2603.03251",
        "4.68 (70B), and 1.58 over draft-then-verify",
        decoding="ssd",
        speculation={"width": 12},
    ),
    "sled": System(
        "arXiv 2506.09397",
        "2.2 times the throughput of the server",
        decoding="draft_then_verify",
        gammas=(2, 4, 8),
        on_a_device=True,
    ),
    "fly": System(
        "arXiv 2511.22972",
        "2.74 to 2.81 (70B)",
        acceptance="loose",
        speculation={"rows": 16},
    ),
}
"""By the name that rows have. The first is what the others are compared with."""


def _unused() -> dict[str, System]:
    """By registry key, what no system above uses, each beside CARD's other parts."""
    registries = (PACINGS, RULES, DRAFTERS, GROWTHS, WITHOUT_DRAFT)
    used = {next(iter(registry)) for registry in registries}
    used |= {pacing.growth for pacing in PACINGS.values() if pacing.growth is not None}
    for system in SYSTEMS.values():
        used |= {system.decoding, system.acceptance, *map(str, system.speculation.values())}
    ours = [name for name, drafter in DRAFTERS.items() if drafter.model != "tensorrt_llm"]
    found = {name: System("none", "none", decoding=name) for name in PACINGS}
    found |= {name: System("none", "none", acceptance=name) for name in RULES}
    for setting, keys in (("drafter", ours), ("growth", GROWTHS), ("proposals", WITHOUT_DRAFT)):
        found |= {name: System("none", "none", speculation={setting: name}) for name in keys}
    return {name: system for name, system in found.items() if name not in used}


SYSTEMS |= _unused()
