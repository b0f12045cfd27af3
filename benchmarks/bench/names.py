"""What systems and places are called in tables."""

from __future__ import annotations

from typing import Protocol

from card.speculation.pacing import PACINGS, title_of

_SYSTEMS = {
    **{name: title_of(name) for name in PACINGS},
    "card_unrelated_draft": "CARD, unrelated draft",
    "draft_alone": "draft model alone",
    "llama_cpp": "llama.cpp",
    "llama_cpp_prompt_lookup": "llama.cpp, prompt lookup",
    "llama_cpp_draft": "llama.cpp, our draft",
    "openvino": "OpenVINO GenAI",
    "openvino_speculative": "OpenVINO GenAI, speculative",
}
_PLACES = {"in_process": "in process", "grpc": "gRPC", "peer": "peer"}
_OWN_PROCESSES = (
    "card_unrelated_draft",
    *(name for name, pacing in PACINGS.items() if pacing.parallel),
)
"""Whose two processes have the threads of the settings."""


class _Set(Protocol):
    @property
    def system(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def gamma(self) -> int | None: ...
    @property
    def threads(self) -> int: ...


def name_of(system: str) -> str:
    return _SYSTEMS.get(system, system.replace("_", "-"))


def place_of(where: str) -> str:
    return _PLACES[where]


def setting_of(who: _Set) -> str:
    """The setting that was chosen from those tried."""
    said = []
    if who.gamma is not None:
        said.append(f"{who.gamma} tokens" if who.where == "peer" else f"γ = {who.gamma}")
    if who.where == "in_process" and who.system not in _OWN_PROCESSES:
        said.append(f"{who.threads} thread{'s' * (who.threads > 1)}")
    return ", ".join(said)
