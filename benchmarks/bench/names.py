"""What systems and places are called in tables and pictures."""

from __future__ import annotations

from typing import Protocol

_SYSTEMS = {
    "autoregressive": "autoregressive",
    "draft_then_verify": "draft-then-verify",
    "pearl": "PEARL",
    "card_without_guesses": "CARD without guesses from the text",
    "card": "CARD",
    "draft_alone": "draft model alone",
    "transformers": "transformers",
    "transformers_assisted": "transformers, assisted",
    "transformers_prompt_lookup": "transformers, prompt lookup",
    "openvino": "OpenVINO GenAI",
    "openvino_speculative": "OpenVINO GenAI, speculative",
}
_PLACES = {"in_process": "in process", "grpc": "gRPC", "peer": "peer"}


class _Set(Protocol):
    @property
    def system(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def gamma(self) -> int | None: ...
    @property
    def threads(self) -> int: ...
    @property
    def width(self) -> int | None: ...


def name_of(system: str) -> str:
    return _SYSTEMS[system]


def place_of(where: str) -> str:
    return _PLACES[where]


def setting_of(who: _Set) -> str:
    """The setting that was chosen from those tried."""
    if who.system in ("autoregressive", "draft_alone"):
        return _threads(who.threads)
    if who.system == "transformers_assisted" and who.gamma is None:
        return "its own length"
    if who.gamma is not None:
        if who.where == "peer":
            return f"{who.gamma} tokens"
        width = f", width {who.width}" if who.width is not None and who.width > 1 else ""
        # Whoever runs in two processes has the threads of the settings.
        threads = f", {_threads(who.threads)}" if who.system == "draft_then_verify" else ""
        return f"γ = {who.gamma}{width}{threads}"
    return ""


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def label(who: _Set) -> str:
    """System and setting in one line."""
    setting = setting_of(who)
    return name_of(who.system) + (f" ({setting})" if setting else "")
