"""Makes the parts of the target's loop from the settings."""

from __future__ import annotations

from card.engines import Engine
from card.settings import Settings
from card.speculation.acceptance import RULES, AcceptanceConfig, Exact
from card.speculation.control import CHOOSES_ROWS, CONTROLLERS, ControlConfig, Controller
from card.speculation.ngram_tables import table_of_setting
from card.speculation.sources.ngram import NgramMemory


def acceptance_rules(settings: Settings) -> dict[str, Exact]:
    """By registry key."""
    speculation = settings.speculation
    config = AcceptanceConfig(speculation.loose_entropy, speculation.loose_window)
    return {name: rule(config) for name, rule in RULES.items()}


def controller(settings: Settings, engine: Engine) -> Controller:
    """The controller of this engine's passes. Choosing their rows needs measured costs."""
    kind = CONTROLLERS[settings.control]
    if kind.chooses_rows and not engine.row_costs_ms:
        kind = CONTROLLERS[CHOOSES_ROWS[False]]
    speculation = settings.speculation
    config = ControlConfig(
        num_rows=None if speculation.rows == "auto" else speculation.rows,
        ngram_tokens=speculation.ngram_tokens,
        costs_ms=engine.row_costs_ms,
        alone_share=engine.alone_share,
        apart=settings.draft_is_apart,
    )
    return kind(config)


def ngram_memory(settings: Settings, vocabulary: int) -> NgramMemory:
    """The n-gram memory of a target with `vocabulary` ids. Raises `NgramFileError`."""
    speculation = settings.speculation
    frozen = table_of_setting(speculation.ngram_table, vocabulary)
    return NgramMemory(shares=speculation.shared_ngrams, frozen=frozen)
