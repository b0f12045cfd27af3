"""The target's tokens: the tokenizer, the number of ids, and the ids that end a text.

Both models of the pair share them. This module reads the files beside the weights, so that
processes which handle text never load a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from tokenizers import Tokenizer

from card.cache.layout import MAX_END_IDS
from card.serving.requests.refusal import Refusal
from card.settings import SettingsError
from model_files import ModelFiles, ModelFilesError, model_files_of
from model_files.end_ids import end_ids


@dataclass(frozen=True)
class Vocabulary:
    """The part of the pair that a text process needs.

    tokenizer  text to ids and back
    size       ids that the target has logits for: 0 to size - 1
    end_ids    ids that end a text unless a request names another; chat models often have several
    """

    tokenizer: Tokenizer
    size: int
    end_ids: tuple[int, ...]

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, kind in added.items() if kind.special)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read it from a Hugging Face directory or a GGUF file. Raises `SettingsError` naming the
        file."""
        try:
            files = model_files_of(path)
            size = _size(files)
            tokenizer = files.tokenizer()
            ends = end_ids(files, size, tokenizer)
        except ModelFilesError as error:
            raise SettingsError(str(error)) from error
        if len(ends) > MAX_END_IDS:
            raise SettingsError(
                f"{path} names {len(ends)} ids that end a text in eos_token_id of its "
                f"configurations and its tokenizer; at most {MAX_END_IDS} can"
            )
        return cls(tokenizer, size, ends)

    def prompt_tokens(self, text: str) -> list[int]:
        """The token ids of a prompt. Raises `Refusal`."""
        return self._encoded(text, "text_input", special=True)

    def predicted_tokens(self, text: str) -> list[int]:
        """The token ids of a text that may follow the prompt, up to a token that the target never
        writes. Raises `Refusal`."""
        ids = self._encoded(text, "prediction", special=False)
        return list(takewhile(lambda token: token < self.size, ids))

    def special_ids(self, words: tuple[str, ...]) -> tuple[int, ...]:
        """Ids of the words that are special tokens, which never are part of a text."""
        found = (self.tokenizer.token_to_id(word) for word in words)
        special = self._special
        return tuple(token for token in found if token in special and token < self.size)

    def bad_word_tokens(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Token sequences that write a word, at the start of a text and after a space.

        A tokenizer may have ids without logits, such as padding. The target never writes a sequence
        with such an id, so it needs no ban.
        """
        spellings = [spelling for word in words for spelling in (word, f" {word}")]
        sequences = (
            tuple(self._encoded(spelling, "bad_words", special=False)) for spelling in spellings
        )
        return tuple(dict.fromkeys(ids for ids in sequences if ids and max(ids) < self.size))

    def _encoded(self, text: str, field: str, *, special: bool) -> list[int]:
        try:
            # As a batch of one: only then does the library let other threads run meanwhile.
            return self.tokenizer.encode_batch([text], add_special_tokens=special)[0].ids
        except Exception as error:  # the library raises no narrower class
            raise Refusal(
                "INVALID_ARGUMENT",
                f"{field} holds what this model's tokenizer does not know and has no token for "
                f"({error}); leave that out",
                field=field,
            ) from error


def vocabulary_size(path: Path) -> int:
    """Number of ids with logits of the target at `path`, read without the tokenizer, which takes
    30 MiB for 50,000 ids. Raises `SettingsError` naming the file."""
    try:
        return _size(model_files_of(path))
    except ModelFilesError as error:
        raise SettingsError(str(error)) from error


def _size(files: ModelFiles) -> int:
    size = files.config().get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise SettingsError(f"{files.config_file} has no usable vocab_size ({size!r})")
    return size
