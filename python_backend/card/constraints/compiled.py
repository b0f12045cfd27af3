"""Guides compiled for one model's tokens."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from card.constraints.constraint import SLOW_S
from card.constraints.grammar import explained, grammar_of
from card.constraints.guide import Budget, Guide, GuideError
from model_files import ModelFilesError, model_files_of
from model_files.end_ids import end_ids

_LIMITS = LLParserLimits(
    max_items_in_row=20_000,  # by default an object of some 500 optional fields is too much
    step_max_items=30_000,  # an object of 1,000 optional fields takes most of it
    step_lexer_fuel=100_000,
    max_grammar_size=200_000,
    max_lexer_states=100_000,  # of one or two kilobytes
)
"""Limits of one guide. They count work, so the same text reaches them on every machine."""

_EXHAUSTED = {
    "Too many items": Budget.ITEMS,
    "Current row has": Budget.ITEMS,
    "too many states": Budget.STATES,
    "fuel exhausted": Budget.FUEL,
    "too many expressions": Budget.FUEL,
}
"""Budgets by llguidance's message for an exhausted limit."""

_MOST_FORCED = 64
"""Most useful forced tokens: a pass has no more rows."""
_LONG_RUN = 1024
"""A longer run of forced bytes is tokenized `_TOKENIZED` bytes at a time."""
_TOKENIZED = 512

_REHEARSED = 4
"""Tokens of a guide's test, because some guides fail only behind their first token."""

_SILENT = 0
_NO_TEXT = "no text can go on from here"


class GuidedTokens:
    """The tokens of a model, for guides.

    vocabulary  number of ids with logits
    end_ids     ids that end a text, also as a set: `ends`
    tokenizer   llguidance's tokenizer
    """

    def __init__(self, tokens: LLTokenizer, vocabulary: int, ends: tuple[int, ...]) -> None:
        self.tokenizer = tokens
        self.vocabulary = vocabulary
        self.end_ids = list(ends)
        self.ends = frozenset(ends)

    @cached_property
    def executor(self) -> LLExecutor:
        """A thread of llguidance's own."""
        return LLExecutor(1)

    def ended(self) -> tuple[LLMatcher, int]:
        """A matcher that has ended, and a token that it takes."""
        return self._ended.deep_copy(), self.end_ids[0]

    @cached_property
    def _ended(self) -> LLMatcher:
        matcher = LLMatcher(self.tokenizer, grammar_of(Guide("choice", '["a"]')))
        matcher.consume_tokens(self.tokenizer.tokenize_str("a"))
        return matcher

    @classmethod
    def load(cls, path: Path) -> GuidedTokens:
        """Read the tokens of a Hugging Face directory or a GGUF file. For 50,000 tokens this blocks
        all threads for 0.2 s.

        Raises `GuideError` if the model's texts cannot be guided.
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
        # A tokenizer may have ids without logits.
        size = max(vocabulary, tokenizer.get_vocab_size())
        try:
            tokens = LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=ends[0])
        except ValueError as error:
            raise GuideError(f"{path}: texts of its tokenizer cannot be guided: {error}") from error
        return cls(tokens, vocabulary, ends)

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide; other threads run meanwhile. Raises `GuideError` saying what is wrong,
        and where."""
        matcher = LLMatcher(self.tokenizer, grammar_of(guide), limits=_LIMITS, log_level=_SILENT)
        if matcher.is_error():
            raise explained(guide, matcher.get_error())
        return CompiledGuide(matcher, self)


class CompiledGuide:
    """A compiled guide, which all texts of the guide share.

    is_slow  a step of some text took long
    """

    def __init__(self, matcher: LLMatcher, tokens: GuidedTokens) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self.is_slow = False

    def begin(self) -> GuidedText:
        """An empty text."""
        return GuidedText(self._matcher.deep_copy(), self._tokens)

    def rehearse(self) -> None:
        """Test the guide with the first tokens of a text. Raises `GuideError` if there is none."""
        text = self.begin()
        for _ in range(_REHEARSED):
            allowed = text.allowed()
            allowed[self._tokens.end_ids] = False
            ids = np.flatnonzero(allowed)
            if not ids.size:
                return
            text.advance(int(ids[-1]))


class GuidedText:
    """The state of one text in its guide. Not thread-safe.

    is_known  `allowed` was asked at this place
    step_s    processor time that the last `allowed` took
    """

    def __init__(self, matcher: LLMatcher, tokens: GuidedTokens) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._last: list[int] = []
        self._in_long_run = False
        self.is_known = False
        self.step_s = 0.0

    def advance(self, token: int) -> None:
        """Append a token. Raises `GuideError` if it is not allowed here."""
        if not self._consume(token):
            raise self._problem()
        self._last = [token]
        self.is_known = False

    def allowed(self) -> NDArray[np.bool_]:
        """Ids that may come next, [vocabulary] bool, with end ids where the text may end. Other
        threads run meanwhile.

        Raises `GuideError` if no id may come next, or if the computation exceeds a limit.
        """
        started = time.thread_time()
        mask = self._mask_of_long_run()
        if mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            if self._matcher.is_error():
                raise self._problem()
            size = self._tokens.vocabulary
            mask = np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
        mask[self._tokens.end_ids] = self._matcher.is_accepting()
        if not mask.any():  # the guide itself names a token that ends a text
            raise GuideError(_NO_TEXT)
        self._in_long_run = len(self._forced_bytes()) > _LONG_RUN
        self.step_s = time.thread_time() - started
        self.is_known = True
        return mask

    def allowed_behind(self, path: list[int]) -> NDArray[np.bool_]:
        """Ids that may follow `path`, [vocabulary] bool; none if the guide does not allow `path`.

        Raises `GuideError` if the computation exceeds a limit.
        """
        if not path:
            return self.allowed()
        taken = 0
        if self._tokens.ends.isdisjoint(path):
            taken = self._matcher.try_consume_tokens(path)
        allowed = np.zeros(self._tokens.vocabulary, np.bool_)
        if taken == len(path):
            behind = GuidedText(self._matcher, self._tokens)
            allowed = behind.allowed()
        self._matcher.rollback(taken)
        return allowed

    def forced_behind(self, path: list[int]) -> list[int]:
        """The forced text behind `path`, an allowed path: its tokens by the tokenizer, at most
        `_MOST_FORCED`. The model may choose other tokens of the same text."""
        if not self._tokens.ends.isdisjoint(path) or self._matcher.is_stopped():
            return []
        if path:
            self._matcher.consume_tokens(path)
        forced_bytes = self._forced_bytes()
        forced = self._tokenized(forced_bytes, path[-1:] or self._last)
        if forced is None:
            forced = self._matcher.compute_ff_tokens() if forced_bytes else []
        if path:
            self._matcher.rollback(len(path))
        return forced[:_MOST_FORCED]

    def _consume(self, token: int) -> bool:
        """Append a token; returns whether it is allowed. Behind a slow step this is slow too. Then
        llguidance also gets a matcher that has ended, because it lets other threads run only while
        it works on several matchers."""
        if self.step_s <= SLOW_S:
            return bool(self._matcher.consume_token(token))
        pairs = [(self._matcher, token), self._tokens.ended()]
        return bool(self._tokens.executor.consume_token_par(pairs)[0])

    def _mask_of_long_run(self) -> NDArray[np.bool_] | None:
        """A mask of the next forced token alone, without tokenizing a whole long run. None: the
        text is not in a long run."""
        if not self._in_long_run:
            return None
        forced = self._tokenized(self._forced_bytes(), self._last)
        if not forced:
            return None
        mask = np.zeros(self._tokens.vocabulary, np.bool_)
        mask[forced[0]] = True
        return mask

    def _forced_bytes(self) -> bytes:
        """The forced bytes of the text; fast only after a call of `allowed`."""
        if not self._tokens.tokenizer.is_canonical or self._matcher.is_stopped():
            return b""
        return bytes(self._matcher.compute_ff_bytes())

    def _tokenized(self, forced: bytes, last: list[int]) -> list[int] | None:
        """The next tokens of a long run behind the last token. None: the run is not long."""
        if len(forced) <= _LONG_RUN:
            return None
        tokens, _ = self._tokens.tokenizer.tokenize_partial(forced[:_TOKENIZED], recent_tokens=last)
        return tokens

    def _problem(self) -> GuideError:
        said = self._matcher.get_error().split("\n")[0]
        if said.startswith("NoExtension"):
            return GuideError(_NO_TEXT)
        found = [budget for words, budget in _EXHAUSTED.items() if words in said]
        return GuideError(said, found[0] if found else None)
