"""A row's logits are the same bits however its pass is put together.

Everything is compared with the same text read one row at a time, which is what plain
autoregressive decoding does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import gguf_models
import numpy as np
import pytest
import tiny_models
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from real_pair import TARGET
from this_processor import skip_unless_computed_in
from tiny_models import FAMILIES, forward_rows, opened, random_tokens, read, read_alone
from transformers import LlamaConfig

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.interface import BLOCK
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import Dtype, EngineOptions
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

AnyEngine = TorchEngine | OpenVinoEngine

PATHS = 4
KEPT_BLOCKS = 5
LONGEST = 280
"""Tokens of a text; the keys of its last rows fill several blocks of every kind of attention."""
OPTIONS = EngineOptions(
    context=LONGEST + 20,
    sessions=3,
    paths=PATHS,
    threads=1,
    threads_alone=2,
    graph_rows=(1, 4, 16, 64),
    compressed=True,
    kept_tokens=KEPT_BLOCKS * BLOCK,
)


@dataclass(frozen=True)
class Case:
    """An engine, what it computes, and in what."""

    engine_class: type[AnyEngine]
    model: str
    dtype: Dtype
    options: EngineOptions = OPTIONS

    def load(self, directory: Path) -> AnyEngine:
        """As loading makes it."""
        if self.model == "trained":
            directory = TARGET
        elif self.model in GGUF:
            gguf_models.write(directory / "model.gguf", "llama", GGUF[self.model], config=LARGE)
        elif self.model == "tiny in bfloat16":  # matrices may stay compressed in float32
            tiny_models.build(FAMILIES["qwen2"]).bfloat16().save_pretrained(directory)
        else:  # every query head has keys of its own, or shares them
            tiny_models.save(directory, self.model)
        options = replace(self.options, dtype=self.dtype)
        engine = make_row_invariant(self.engine_class.load(directory, options))
        assert engine.row_invariant
        assert engine.options.graph_rows == options.graph_rows
        return engine


LARGE = LlamaConfig(**gguf_models.FAMILIES["llama"].to_dict() | {"intermediate_size": 4608})
"""Its matrices of the network are too large to become one matrix of bytes."""
GGUF = {
    "Q4_K_M": {"": "Q4_K", "attn_v.weight": "Q6_K", "ffn_down.weight": "Q6_K"},
    "Q4_K_M of odd rows": {"": "Q5_0", "ffn_up.weight": "Q4_K", "attn_v.weight": "Q8_0"},
    "Q3_K_M": {"": "Q3_K", "ffn_down.weight": "Q5_K", "ffn_up.weight": "Q2_K"},
    "IQ4_XS": {"": "IQ4_XS", "attn_v.weight": "Q5_1", "ffn_up.weight": "IQ4_NL"},
    "MXFP4": {"": "MXFP4", "attn_v.weight": "Q4_1", "ffn_up.weight": "Q4_0"},
}
"""Types of the matrices of a file, as recipes mix them."""
CASES = {
    "openvino trained": Case(OpenVinoEngine, "trained", "auto"),
    "openvino int8": Case(OpenVinoEngine, "trained", "int8"),
    "openvino int4": Case(OpenVinoEngine, "trained", "int4"),
    "openvino bfloat16": Case(OpenVinoEngine, "llama2", "bfloat16"),
    "openvino float32": Case(OpenVinoEngine, "llama2", "float32"),
    "openvino compressed": Case(OpenVinoEngine, "tiny in bfloat16", "float32"),
    "openvino normed": Case(OpenVinoEngine, "qwen3", "float32"),
    "openvino windows": Case(OpenVinoEngine, "gemma3_text", "float32"),
    "openvino LayerNorm": Case(OpenVinoEngine, "starcoder2", "float32"),
    "openvino normed whole": Case(OpenVinoEngine, "olmo2", "float32"),
    "openvino rotated in part": Case(OpenVinoEngine, "phi3", "float32"),
    **{f"openvino {name}": Case(OpenVinoEngine, name, "auto") for name in GGUF},
    "openvino any rows": Case(OpenVinoEngine, "trained", "auto", replace(OPTIONS, graph_rows=())),
    "torch bfloat16": Case(TorchEngine, "gemma3_text", "bfloat16"),
    "torch float32": Case(TorchEngine, "qwen3", "float32"),
}


class Subject:
    """An engine, texts, and what it says of each when it reads one row at a time."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        one, other = (random_tokens(LONGEST, seed, engine.vocabulary) for seed in range(2))
        self.texts = [one, other, one[: 2 * BLOCK + 7] + other[2 * BLOCK + 7 :]]
        self.expected = [read_alone(engine, text, [1]) for text in self.texts]


@pytest.fixture(scope="module", params=CASES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    case = CASES[request.param]
    skip_unless_computed_in(case.dtype)
    return Subject(case.load(tmp_path_factory.mktemp("model")))


numbers, choices = st.integers(0, 2), st.integers(0, OPTIONS.sessions - 1)
lengths, salts = st.integers(1, LONGEST), st.sampled_from([b"", b"one"])
counts = st.sampled_from([0, 1, 2, 3, 4, 7, 27])
"""Rows of a pass; two of them and all paths have room in one."""
branches = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), max_size=PATHS - 1)
"""Behind how many right rows wrong ones part from them, and how many more follow these."""


Share = tuple[int, int, int, list[tuple[int, int]]]


class Sessions(RuleBasedStateMachine):
    """Sessions that come and go in any order, behind texts that part near the borders of blocks.

    Each has the bits of its text in `expected`, and begins behind what was kept with its salt.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self._subject = subject
        self._engine = subject.engine.reconfigured(subject.engine.options)
        self._engine.row_invariant = True
        self._sessions: dict[int, tuple[int, bytes]] = {}
        self._kept: set[tuple[bytes, tuple[int, ...]]] = set()

    @precondition(lambda self: len(self._sessions) < OPTIONS.sessions)
    @rule(number=numbers, length=lengths, salt=salts)
    def begin(self, number: int, length: int, salt: bytes) -> None:
        text = self._subject.texts[number][: length - 1]
        session = self._engine.open_session(text, salt)
        known = self._engine.length(session)
        assert known == 0 or (salt, tuple(text[:known])) in self._kept
        self._sessions[session] = number, salt

    @precondition(lambda self: self._sessions)
    @rule(choice=choices, length=lengths)
    def prefill(self, choice: int, length: int) -> None:
        session = self._choose(choice)
        number, at = self._sessions[session][0], self._engine.length(session)
        if at >= length:
            return
        found = read(self._engine, session, self._subject.texts[number][at:length], [64, 33])
        np.testing.assert_array_equal(found, self._subject.expected[number][at : at + len(found)])

    @precondition(lambda self: self._sessions)
    @rule(
        passes=st.lists(st.tuples(choices, counts, counts, branches), min_size=1, max_size=3),
        alone=st.booleans(),
    )
    def share_a_pass(self, passes: list[Share], alone: bool) -> None:
        """Of each session some rows of its text; behind them, and beside, some that are wrong."""
        batch: dict[int, tuple[SequenceTokens, list[int]]] = {}
        for choice, right, wrong, parting in passes:
            session = self._choose(choice)
            rows, path = self._rows(session, right, wrong, parting)
            if rows.tokens:
                batch[session] = rows, path
        turns = list(batch.values())
        rows_of_all = [rows for rows, _ in turns]
        logits = forward_rows(self._engine, rows_of_all, alone=alone) if turns else []
        for (rows, path), found in zip(turns, logits, strict=True):
            number, at = self._sessions[rows.session][0], self._engine.length(rows.session)
            expected = self._subject.expected[number][at : at + len(path)]
            np.testing.assert_array_equal(found[path], expected)
            self._engine.commit_kv(rows.session, path)

    def _rows(
        self, session: int, right: int, wrong: int, parting: list[tuple[int, int]]
    ) -> tuple[SequenceTokens, list[int]]:
        """Rows of a pass, and which of them go on with the text."""
        number, at = self._sessions[session][0], self._engine.length(session)
        text = self._subject.texts[number][at:]
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []

        def append(chain: list[int], above: int) -> int:
            for token in chain:
                parents.append(above)
                above = len(tokens)
                tokens.append(token)
            return above

        for place, token in enumerate(text[:right]):
            above = path[-1] if path else FOLLOWS_PREFIX
            for length in (length for where, length in parting if where == place):
                append([token ^ 1, *text[:length]], above)  # so that the right one moves
            path.append(append([token], above))
        append(
            [token ^ 1 for token in text[right : right + wrong]],
            path[-1] if path else FOLLOWS_PREFIX,
        )
        return SequenceTokens(session, tokens, parents if parting else None), path

    @precondition(lambda self: self._sessions)
    @rule(choice=choices)
    def keep(self, choice: int) -> None:
        session = self._choose(choice)
        number, salt = self._sessions[session]
        text = self._subject.texts[number]
        known = text[: self._engine.length(session)]
        self._engine.remember(session, text, salt)
        for end in range(BLOCK, len(known) + 1, BLOCK):
            self._kept.add((salt, tuple(known[:end])))
        if len(self._sessions) < OPTIONS.sessions:
            with_it = self._engine.open_session(known, salt)
            kept = min(len(known) // BLOCK, KEPT_BLOCKS) * BLOCK
            assert self._engine.length(with_it) == kept
            self._engine.close_session(with_it)

    @precondition(lambda self: self._sessions)
    @rule(choice=choices)
    def end(self, choice: int) -> None:
        session = self._choose(choice)
        del self._sessions[session]
        self._engine.close_session(session)

    def _choose(self, choice: int) -> int:
        return sorted(self._sessions)[choice % len(self._sessions)]

    def teardown(self) -> None:
        """Nothing was lost: all sessions have room for as much as ever."""
        for session in self._sessions:
            self._engine.close_session(session)
        for session in [self._engine.open_session() for _ in range(OPTIONS.sessions)]:
            text, expected = self._subject.texts[0], self._subject.expected[0]
            np.testing.assert_array_equal(read(self._engine, session, text, [64]), expected)


def test_sessions_that_share_passes_and_kept_text_have_the_bits_of_single_rows(
    subject: Subject,
) -> None:
    class OfThis(Sessions):
        def __init__(self) -> None:
            super().__init__(subject)

    run_state_machine_as_test(
        OfThis,
        settings=settings(max_examples=10, stateful_step_count=20, deadline=None),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_text_of_a_thousand_tokens_keeps_its_bits(
    tmp_path: Path, dtype: Dtype, engine_class: type[AnyEngine]
) -> None:
    skip_unless_computed_in(dtype)
    config = FAMILIES["llama3"].__class__(
        **FAMILIES["llama3"].to_dict() | {"max_position_embeddings": 1024}
    )
    tiny_models.build(config).save_pretrained(tmp_path)
    engine = make_row_invariant(
        engine_class.load(tmp_path, EngineOptions(context=1024, sessions=2, dtype=dtype))
    )
    text = random_tokens(1000)
    expected: NDArray[np.float32] = read_alone(engine, text, [64])
    for chunks in ([256], [7, 100, 33], [255, 1, 63, 65]):
        np.testing.assert_array_equal(read_alone(engine, text, chunks), expected)
    with opened(engine) as session:
        read(engine, session, text[:980], [128])
        np.testing.assert_array_equal(read(engine, session, text[980:], [1]), expected[980:])
