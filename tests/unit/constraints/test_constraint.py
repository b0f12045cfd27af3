"""A slow guide holds up its own text alone, and the work that it may take is counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn, cast

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from llguidance import LLParserLimits
from numpy.typing import NDArray
from one_process import GREEDY, OneProcess, autoregressive, request_of, settings_of

from card.cache import Finish, SlotRequest
from card.constraints import Budget, Guide, GuideError, compiled
from card.constraints.compiled import CompiledGuide, GuidedText, GuidedTokens
from card.constraints.compiler import GuideCompiler
from card.constraints.constraint import Constraint, DraftConstraint, GuideThreads
from card.sampling import SamplingParameters

PAIR = Path(__file__).parents[2] / "pair" / "target"
TOKENS = GuidedTokens.load(PAIR)
TARGET = FakeModel(TOKENS.vocabulary)
WORDS = Guide("regex", "([a-f]{2,5} ){12}")
AMBIGUOUS = Guide("ebnf_grammar", 'start: s\ns: s s s | s s | "a" | "b" | " " | "e" | "ab"')
_LONG_S = 60.0


def _guided(guide: Guide, decoding: str = "card", temperature: float = 0.0) -> SlotRequest:
    parameters = SamplingParameters(
        temperature=temperature, seed=5, end_ids=tuple(TOKENS.end_ids), min_tokens=60
    )
    return replace(request_of([1, 2, 3], 60, decoding, parameters), guide=guide)


def _both(guides: GuideCompiler) -> OneProcess:
    draft = FakeEngine(FakeModel(TOKENS.vocabulary, agreement=0.9), tree=True)
    settings = settings_of(ngram_tokens=4)
    return OneProcess(FakeEngine(TARGET, tree=False), draft, settings, guides)


def _written(request: SlotRequest, patience_s: float) -> tuple[list[int], Finish]:
    """With a loop that waits so long for a mask."""
    with _both(GuideCompiler(lambda: TOKENS, patience_s)) as both:
        stream = both.open(request)
        while stream.finish is Finish.RUNNING:
            both.draft.step()
            both.target.step()
        return stream.output, stream.finish


class _Gate:
    """Lets the masks of one guide through, or keeps them."""

    def __init__(self) -> None:
        self.is_open = threading.Event()

    def compiled(self, guide: Guide) -> CompiledGuide:
        gate = self

        class Gated(GuidedText):
            def allowed(self) -> NDArray[np.bool_]:
                gate.is_open.wait()
                return super().allowed()

        class Compiled(CompiledGuide):
            def begin(self) -> GuidedText:
                return Gated(self._matcher.deep_copy(), self._tokens)

        return Compiled(TOKENS.compile(guide)._matcher, TOKENS)


@contextmanager
def _gate() -> Iterator[_Gate]:
    """Opened in the end, so that no thread stays behind."""
    gate = _Gate()
    try:
        yield gate
    finally:
        gate.is_open.set()


def _ready(guide: CompiledGuide) -> Future[CompiledGuide]:
    future: Future[CompiledGuide] = Future()
    future.set_result(guide)
    return future


def test_text_is_the_same_when_no_mask_is_waited_for() -> None:
    for temperature in (0.0, 0.8):
        request = _guided(WORDS, temperature=temperature)
        assert _written(request, 0.0) == _written(request, _LONG_S)


def test_plain_text_goes_on_when_the_mask_of_another_is_not_ready() -> None:
    class Compiler(GuideCompiler):
        def _compiled_guide(self, guide: Guide) -> Future[CompiledGuide]:
            return _ready(gate.compiled(guide))

    plain = request_of([1, 2], 40, parameters=GREEDY)
    with _gate() as gate, _both(Compiler(lambda: TOKENS, 0.0)) as both:
        guided, other = both.open(_guided(WORDS), 0), both.open(plain, 1)
        assert both.run([other]) == [autoregressive(TARGET, plain)]
        assert guided.finish is Finish.RUNNING
        assert not guided.output
        gate.is_open.set()
        while guided.finish is Finish.RUNNING:
            both.target.step()
        assert guided.finish is not Finish.GUIDE_FAILED


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_exhausted_guide_ends_its_text_at_the_same_token_however_it_is_decoded(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_LIMITS", LLParserLimits(step_max_items=2000))
    ways = [("autoregressive", _LONG_S), ("card", _LONG_S), ("card", 0.0)]
    found = [
        _written(_guided(AMBIGUOUS, decoding, temperature), patience) for decoding, patience in ways
    ]
    assert found[0][1] is Finish.GUIDE_ITEMS
    assert found == [found[0]] * 3


@pytest.mark.parametrize(
    ("guide", "budget"),
    [
        (AMBIGUOUS, Budget.ITEMS),
        (Guide("regex", "(.{0,3000}[ab]){0,3000}c"), Budget.FUEL),
        (Guide("regex", "(?s:.{1,3000})"), Budget.STATES),
        (Guide("ebnf_grammar", 'start: "abc" /[^\\s\\S]/'), None),
    ],
)
def test_error_names_the_budget_when_a_guide_ends_its_text(
    guide: Guide, budget: Budget | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LLParserLimits(step_max_items=500, step_lexer_fuel=5000, max_lexer_states=500)
    monkeypatch.setattr(compiled, "_LIMITS", limits)
    text = TOKENS.compile(guide).begin()

    def write() -> None:
        while True:
            allowed = text.allowed()
            allowed[TOKENS.end_ids] = False
            text.advance(int(np.flatnonzero(allowed)[0]))

    with pytest.raises(GuideError) as failed:
        write()
    assert failed.value.budget is budget


def test_slow_guide_is_quick_again_when_its_steps_are() -> None:
    guide = TOKENS.compile(Guide("regex", "a{100}"))
    guide.is_slow = True
    constraint = Constraint(_ready(guide), GuideThreads(), _LONG_S)
    slow = []
    for _ in range(20):
        while not constraint.is_ready:  # a slow one is not waited for
            pass
        slow.append(constraint.is_slow)
        allowed = constraint.allowed()
        assert allowed is not None
        constraint.advance([int(np.flatnonzero(allowed)[0])])
    assert slow == [True] * 15 + [False] * 5


def test_draft_gives_a_guide_up_when_its_masks_come_late() -> None:
    with _gate() as gate:
        constraint = DraftConstraint(_ready(gate.compiled(WORDS)), GuideThreads(), 0.0)
        assert constraint.masks_behind([[]]) is None
        gate.is_open.set()
        assert constraint.masks_behind([[]]) is None


@pytest.mark.parametrize(
    "guide",
    [
        Guide("choice", json.dumps(["the quick brown fox jumps over it, and " * 60])),
        Guide("json_schema", json.dumps({"const": "the quick brown fox and " * 90})),
    ],
)
def test_forced_tokens_are_as_many_as_are_of_use_when_all_of_a_long_text_is_forced(
    guide: Guide,
) -> None:
    text, written = TOKENS.compile(guide).begin(), list[int]()
    while True:
        (token,) = np.flatnonzero(text.allowed()).tolist()
        forced = text.forced_behind([])
        assert len(forced) <= 64
        if token in TOKENS.end_ids:
            break
        assert forced[:1] in ([token], [])
        written.append(token)
        text.advance(token)
    whole = json.loads(guide.text)
    expected = whole[0] if guide.kind == "choice" else json.dumps(whole["const"])
    assert TOKENS.tokenizer.decode_bytes(written).decode() == expected


class _Asked:
    """Stands for a model's tokens: notes the first letter of each guide, and compiles none."""

    def __init__(self) -> None:
        self.letters: SimpleQueue[str] = SimpleQueue()
        self.compiler = GuideCompiler(lambda: cast(GuidedTokens, self))

    def compile(self, guide: Guide) -> NoReturn:
        self.letters.put(guide.text[:1])
        raise GuideError("compiled for nothing")


def test_large_guides_are_forgotten_before_small_ones_are() -> None:
    asked = _Asked()
    for letters, times in (("abca", 60_000), ("xyzx", 1), ("u", 1)):
        for letter in letters:
            asked.compiler.constraint(Guide("regex", letter * times))
    assert [asked.letters.get(timeout=60) for _ in range(8)] == [*"abcaxyzu"]


def test_draft_gives_a_guide_up_when_it_is_slow() -> None:
    guide = TOKENS.compile(WORDS)
    guide.is_slow = True
    assert DraftConstraint(_ready(guide), GuideThreads(), _LONG_S).masks_behind([[]]) is None


def test_draft_goes_without_a_guide_when_it_is_long() -> None:
    asked = _Asked()
    long = asked.compiler.draft_constraint(Guide("regex", "a" * 40_000))
    asked.compiler.draft_constraint(Guide("regex", "b"))
    assert asked.letters.get(timeout=60) == "b"
    assert long.masks_behind([[]]) is None
