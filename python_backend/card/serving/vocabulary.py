"""The target's tokens: the tokenizer, how many ids there are, which one ends a text.

Both models of the pair share them. Reads JSON files alone, so that processes which handle text
never load a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from card.cache.layout import MAX_END_IDS
from card.serving.refusal import Refusal
from card.settings import SettingsError
from model_files.json_file import JsonFileError, read_json_object


@dataclass(frozen=True)
class Vocabulary:
    """What a process that handles text knows about the pair.

    tokenizer  text to ids and back
    size       ids that the target has logits for: 0 to size - 1
    end_ids    ids that end a text unless a request names another; chat models often have several
    """

    tokenizer: Tokenizer
    size: int
    end_ids: tuple[int, ...]

    @classmethod
    def load(cls, directory: Path) -> Vocabulary:
        """Read it from a Hugging Face directory. Raises `SettingsError` naming the file."""
        config = _json(directory / "config.json", required=True)
        generation = _json(directory / "generation_config.json", required=False)
        size = config.get("vocab_size")
        if not isinstance(size, int) or size < 1:
            raise SettingsError(f"{directory / 'config.json'} has no usable vocab_size ({size!r})")
        tokens = directory / "tokenizer.json"
        if not tokens.is_file():
            raise SettingsError(
                f"{tokens} does not exist; target.path must name a Hugging Face directory with a "
                "fast tokenizer (tokenizer.json)"
            )
        source = "generation_config.json" if "eos_token_id" in generation else "config.json"
        wanted = {**config, **generation}.get("eos_token_id")
        end_ids = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
        if not all(type(end_id) is int and 0 <= end_id < size for end_id in end_ids):
            raise SettingsError(
                f"{directory / source} has no usable eos_token_id ({wanted!r}); "
                f"it must be null, a token id (0 to {size - 1}), or a list of them"
            )
        if len(end_ids) > MAX_END_IDS:
            raise SettingsError(
                f"{directory / source} names {len(end_ids)} ids in eos_token_id; "
                f"at most {MAX_END_IDS} can end a text"
            )
        return cls(_tokenizer(tokens), size, tuple(end_ids))

    def prompt_tokens(self, text: str) -> list[int]:
        """The prompt as the model reads it. Raises `Refusal`."""
        return self._encoded(text, "text_input", special=True)

    def bad_word_tokens(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Token sequences that write a word, at the start of a text and after a space.

        A tokenizer may know more ids than the target has logits for, such as padding: what holds
        one of these is never written and needs no ban.
        """
        spellings = [spelling for word in words for spelling in (word, f" {word}")]
        sequences = (
            tuple(self._encoded(spelling, "bad_words", special=False)) for spelling in spellings
        )
        return tuple(dict.fromkeys(ids for ids in sequences if ids and max(ids) < self.size))

    def _encoded(self, text: str, field: str, *, special: bool) -> list[int]:
        try:
            return self.tokenizer.encode(text, add_special_tokens=special).ids
        except Exception as error:  # the library raises nothing more particular
            raise Refusal(
                "INVALID_ARGUMENT",
                f"{field} holds what this model's tokenizer does not know and has no token for "
                f"({error}); leave that out",
                field=field,
            ) from error


def _tokenizer(file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more particular
        raise SettingsError(f"{file} is not a sound tokenizer: {error}") from error
    # Some are saved as they were trained with; a prompt is read whole, or refused by its length.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _json(path: Path, *, required: bool) -> dict[str, Any]:
    if not required and not path.exists():
        return {}
    try:
        return read_json_object(path)
    except JsonFileError as error:
        raise SettingsError(str(error)) from error
