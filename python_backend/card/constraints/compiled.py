"""Guides compiled for one model's tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from card.constraints.grammar import explained, grammar_of
from card.constraints.guide import Guide, GuideError
from model_files import ModelFilesError, model_files_of
from model_files.end_ids import end_ids

_LIMITS = LLParserLimits(
    max_items_in_row=20_000,  # by default an object of some 500 optional fields is too much
    max_grammar_size=200_000,
    max_lexer_states=100_000,  # of one or two kilobytes
)
"""What one guide may take, so that neither it nor a step of its text holds others up for long."""

_REHEARSED = 4
"""Tokens that a guide is tried with, for some fail behind their first token only."""

_SILENT = 0


class GuidedTokens:
    """The tokens of a model as guides see them.

    vocabulary  ids that the model has logits for
    end_ids     ids that end a text, also as a set: `ends`
    tokenizer   what llguidance knows of them
    """

    def __init__(self, tokens: LLTokenizer, vocabulary: int, ends: tuple[int, ...]) -> None:
        self.tokenizer = tokens
        self.vocabulary = vocabulary
        self.end_ids = list(ends)
        self.ends = frozenset(ends)

    @classmethod
    def load(cls, path: Path) -> GuidedTokens:
        """Read those of a Hugging Face directory or a GGUF file; takes a fifth of a second for
        50,000 of them, in which no other thread runs.

        Raises `GuideError` if its texts cannot be guided.
        """
        try:
            files = model_files_of(path)
            vocabulary = int(files.config()["vocab_size"])
            tokenizer = files.tokenizer()
            ends = end_ids(files, vocabulary, tokenizer)
        except ModelFilesError as error:
            raise GuideError(str(error)) from error
        if not ends:
            raise GuideError(f"{path} names no token that ends a text, so no text can be guided")
        # A tokenizer may know more ids than the model has logits for.
        size = max(vocabulary, tokenizer.get_vocab_size())
        try:
            tokens = LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=ends[0])
        except ValueError as error:
            raise GuideError(f"{path}: texts of its tokenizer cannot be guided: {error}") from error
        return cls(tokens, vocabulary, ends)

    def compile(self, guide: Guide) -> CompiledGuide:
        """Other threads run meanwhile. Raises `GuideError` saying what is wrong, and where."""
        matcher = LLMatcher(self.tokenizer, grammar_of(guide), limits=_LIMITS, log_level=_SILENT)
        if matcher.is_error():
            raise explained(guide, matcher.get_error())
        return CompiledGuide(matcher, self)


class CompiledGuide:
    """What all texts of one guide share."""

    def __init__(self, matcher: LLMatcher, tokens: GuidedTokens) -> None:
        self._matcher = matcher
        self._tokens = tokens

    def begin(self) -> GuidedText:
        """An empty text."""
        return GuidedText(self._matcher.deep_copy(), self._tokens)

    def rehearse(self) -> None:
        """Write the first few tokens of some text. Raises `GuideError` if none can be written."""
        text = self.begin()
        for _ in range(_REHEARSED):
            allowed = text.allowed()
            allowed[self._tokens.end_ids] = False
            ids = np.flatnonzero(allowed)
            if not ids.size:
                return
            text.advance(int(ids[-1]))


class GuidedText:
    """The place that one text has reached in its guide. Not for two threads at once."""

    def __init__(self, matcher: LLMatcher, tokens: GuidedTokens) -> None:
        self._matcher = matcher
        self._tokens = tokens

    def advance(self, token: int) -> None:
        """Append a token. Raises `GuideError` if it is not allowed here."""
        if not self._matcher.consume_token(token):
            raise GuideError(self._problem())

    def allowed(self) -> NDArray[np.bool_]:
        """Which ids may come next, [vocabulary]; ids that end a text where it may end.

        Raises `GuideError` if none may, or if finding out takes too much.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GuideError(self._problem())
        mask = np.unpackbits(bits, count=self._tokens.vocabulary, bitorder="little").view(np.bool_)
        mask[self._tokens.end_ids] = self._matcher.is_accepting()
        return mask

    def allowed_behind(self, path: list[int]) -> NDArray[np.bool_]:
        """Which ids may come behind these, [vocabulary]; none if these may not come themselves.

        Raises `GuideError` if finding out takes too much.
        """
        taken = 0
        if self._tokens.ends.isdisjoint(path):
            taken = self._matcher.try_consume_tokens(path)
        whole = taken == len(path)
        allowed = self.allowed() if whole else np.zeros(self._tokens.vocabulary, np.bool_)
        self._matcher.rollback(taken)
        return allowed

    def fitting(self, path: list[int]) -> int:
        """How many of these tokens, from the first, the text may go on with."""
        if self._matcher.is_stopped():  # versions before 1 call it an error to ask then
            return int(not self._tokens.ends.isdisjoint(path[:1]))
        return int(self._matcher.validate_tokens(path))

    def forced_behind(self, path: list[int]) -> list[int]:
        """What the text must go on with behind these, which it may have: the tokens that the
        tokenizer writes it with. A model may choose to write it with others."""
        if not self._tokens.ends.isdisjoint(path) or self._matcher.is_stopped():
            return []
        self._matcher.consume_tokens(path)
        forced: list[int] = self._matcher.compute_ff_tokens()
        self._matcher.rollback(len(path))
        return forced

    def _problem(self) -> str:
        said = self._matcher.get_error().split("\n")[0]
        return "no text can go on from here" if said.startswith("NoExtension") else said
