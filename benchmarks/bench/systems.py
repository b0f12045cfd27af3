"""The family: systems of the literature, each as settings of ours (`benchmarks/README.md`), and who
competes: every system, in process or through a server, with the settings that are tried."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.in_process import InProcess, Loops
from bench.measurement import Measurement, Task
from bench.runner import Contender
from bench.served import Device, device, serving
from card.cores import usable_cores
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
"""By the name that rows have. The others are compared with the first."""


def _unused() -> dict[str, System]:
    """By registry key, what no system above uses, each beside CARD's other parts."""
    registries = (PACINGS, RULES, DRAFTERS, GROWTHS, WITHOUT_DRAFT)
    used = {next(iter(registry)) for registry in registries}
    used |= {pacing.growth for pacing in PACINGS.values() if pacing.growth is not None}
    for system in SYSTEMS.values():
        used |= {system.decoding, system.acceptance, *map(str, system.speculation.values())}
    ours = [name for name, it in DRAFTERS.items() if it.model not in (*GUESTS, "head")]
    found = {name: System(name) for name in PACINGS}
    found |= {name: System(acceptance=name) for name in RULES}
    for setting, keys in (("drafter", ours), ("growth", GROWTHS), ("proposals", WITHOUT_DRAFT)):
        found |= {name: System(speculation={setting: name}) for name in keys}
    return {name: system for name, system in found.items() if name not in used}


SYSTEMS |= _unused()


def systems_for(settings: Settings) -> dict[str, System]:
    """The systems that this pair can run, as their papers have them: a draft makes one token a
    pass, but for `auto` and the systems of blocks. These need a draft with masks."""
    if settings.has_head:  # it has its own way to draft
        own = {"drafter": settings.drafter}
        return {
            name: replace(system, speculation={**own, **system.speculation})
            for name, system in SYSTEMS.items()
            if "drafter" not in system.speculation
        }
    has_masks = bool(settings.draft.mask_ids)
    return {
        name: system if name == "auto" else _step_by_step(system)
        for name, system in SYSTEMS.items()
        if has_masks or system.speculation.get("drafter") != "parallel"
    }


def _step_by_step(system: System) -> System:
    return replace(system, speculation={"drafter": "tree", **system.speculation})


def line_up_in_process(
    stack: ExitStack, pair: InProcess, systems: Mapping[str, System]
) -> list[Contender]:
    """Each system as its pacing runs best; `stack` ends what they run on.

    Systems of equal settings share a draft's process.
    """
    open_loops: list[tuple[Mapping[str, Any], Loops]] = []

    def beside(speculation: Mapping[str, Any]) -> Loops:
        for settings, loops in open_loops:
            if settings == speculation:
                return loops
        open_loops.append((speculation, stack.enter_context(pair.beside(**speculation))))
        return open_loops[-1][1]

    found: list[Contender] = []
    for name, system in systems.items():
        pacing, width = PACINGS[system.decoding], system.speculation.get("width", 1)
        if system.on_a_device:
            continue
        if pacing.queries and not pacing.parallel:
            # In one process, where the model that runs has all threads.
            loops_of = stack.enter_context(pair.alternating(**system.speculation))
            found += [
                _contender(name, system, pair, loops_of(gamma, width), gamma, usable_cores())
                for gamma in system.gammas
            ]
        elif pacing.waits:
            room = pair.room_for(pacing.chunk(max(system.gammas)), width)
            loops = stack.enter_context(pair.beside(**{**room, **system.speculation}))
            found += [_contender(name, system, pair, loops, gamma=gamma) for gamma in system.gammas]
        else:
            found.append(_contender(name, system, pair, beside(system.speculation)))
    return found


def _contender(
    name: str,
    system: System,
    pair: InProcess,
    loops: Loops,
    gamma: int | None = None,
    threads: int | None = None,
) -> Contender:
    """threads  None: those of the settings"""
    pacing, count = PACINGS[system.decoding], threads or pair.settings.target.threads

    def complete(task: Task) -> Measurement:
        return loops.complete(
            task, system.decoding, threads=count, gamma=gamma or 1, acceptance=system.acceptance
        )

    rows = pair.rows if pacing.queries else 1
    if gamma is not None:
        rows = pair.rows_for(pacing.chunk(gamma))
    return Contender(name, "in_process", rows, gamma, lossless=system.lossless, complete=complete)


def line_up_served(
    stack: ExitStack,
    pair: InProcess,
    settings_file: Path | None,
    systems: Mapping[str, System],
) -> list[Contender]:
    """The systems behind a server, which `stack` stops; those that draft on a device have one.

    Raises `ServerError`.
    """
    if not systems:
        return []
    server = stack.enter_context(serving(pair.settings, settings_file))
    far: Device | None = None
    if any(system.on_a_device for system in systems.values()):
        far = stack.enter_context(device(pair.settings.draft.path, server))

    def served(name: str, system: System, gamma: int | None) -> Contender:
        def complete(task: Task) -> Measurement:
            if far is not None and gamma is not None:
                return far(task, system.decoding, gamma)
            return server.complete(task, system.decoding)

        return Contender(name, "grpc", pair.rows, gamma, complete=complete)

    return [
        served(name, system, gamma)
        for name, system in systems.items()
        for gamma in (system.gammas if system.on_a_device else (None,))
    ]
