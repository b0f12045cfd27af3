"""The target's n-grams, as the settings say."""

from __future__ import annotations

from pathlib import Path

from card.engines import EngineError
from card.settings import Settings
from card.speculation.ngram_file import NgramFileError, read_table
from card.speculation.ngram_memory import NgramMemory


def ngram_memory(settings: Settings, vocabulary: int) -> NgramMemory:
    """Of a target with so many ids. Raises `EngineError` where the frozen table is none for it."""
    speculation = settings.speculation
    try:
        file = speculation.ngram_table
        frozen = read_table(file, vocabulary) if isinstance(file, Path) else None
    except NgramFileError as error:
        raise EngineError(f"speculation.ngram_table: {error}") from error
    return NgramMemory(shares=speculation.shared_ngrams, frozen=frozen)
