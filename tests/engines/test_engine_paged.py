"""Paged attention: the logits of `transformers`, and the bits of single rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st
from real_pair import PAIR, TARGET
from this_processor import skip_unless_computed_in
from tiny_models import FAMILIES, SLIDING_WINDOW, forward_rows, opened, random_tokens, read
from watched_passes import recorded_passes

from card.engines import FOLLOWS_PREFIX, Engine, EngineError, Ranking, SequenceTokens
from card.engines.calibration import make_row_invariant
from card.engines.layout import SHORT
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.pages import PAGE
from card.engines.options import MAX_PASS_ROWS, Dtype, EngineOptions
from card.engines.processor import resolve_dtype
from card.engines.torch.engine import TorchEngine
from card.loading import load_engine
from card.settings import load_settings

pytestmark = pytest.mark.usefixtures("one_thread")

SESSIONS = 3
OPTIONS = EngineOptions(
    context=SLIDING_WINDOW,
    sessions=SESSIONS,
    dtype="float32",
    threads=1,
    graph_rows=(1, 4, 16, 64),
)
TEXT = random_tokens(100)
CLOSE = 1e-4


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path, "qwen3")
    return tmp_path


# --- the logits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    model = tiny_models.save(tmp_path, family)
    expected = tiny_models.reference_logits(model, TEXT)
    engine = OpenVinoEngine.load(tmp_path, OPTIONS)
    for options in (OPTIONS, replace(OPTIONS, graph_rows=())):
        engine = engine.reconfigured(options)
        found = tiny_models.read_alone(engine, TEXT, [41, 1, 16, 2, 40])
        assert np.abs(found - expected).max() < CLOSE


@pytest.mark.parametrize(("dtype", "close"), [("float32", CLOSE), ("bfloat16", 0.3)])
def test_a_trained_target_says_what_it_says_in_torch(dtype: Dtype, close: float) -> None:
    skip_unless_computed_in(dtype)
    options = replace(OPTIONS, context=512, dtype=dtype, compressed=True)
    engines = [kind.load(TARGET, options) for kind in (OpenVinoEngine, TorchEngine)]
    text = random_tokens(300, vocabulary=engines[0].vocabulary)
    found, expected = (tiny_models.read_alone(engine, text, [64, 4, 1, 3]) for engine in engines)
    assert np.abs(found - expected).max() < close
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.97


class Subject:
    """An engine as loading makes it, and what it says when it reads one row at a time."""

    def __init__(self, engine: OpenVinoEngine) -> None:
        self.engine = engine
        self.text = random_tokens(280, vocabulary=engine.vocabulary)
        with opened(engine) as session:
            self.alone = read(engine, session, self.text, [1])


@pytest.fixture(
    scope="module",
    params=[
        ("target", "bfloat16", (1, 4, 16, 64)),
        ("target", "int8", (1, 4, 16, 64)),
        ("target", "float32", (1, 4, 16, 64)),
        ("target", resolve_dtype("auto"), ()),
    ],
    ids=lambda param: f"{param[1]}-{'fixed' if param[2] else 'any'}-rows",
)
def subject(request: pytest.FixtureRequest) -> Subject:
    model, dtype, graph_rows = request.param
    skip_unless_computed_in(dtype)
    options = replace(
        OPTIONS, context=512, dtype=dtype, threads_alone=2, graph_rows=graph_rows, compressed=True
    )
    engine = make_row_invariant(OpenVinoEngine.load(PAIR / model, options))
    assert engine.row_invariant
    assert engine.options.graph_rows == graph_rows
    return Subject(engine)


sizes = st.lists(st.integers(1, 20), min_size=1, max_size=SESSIONS)


@settings(max_examples=8, deadline=None)
@given(
    starts=st.lists(st.integers(0, 220), min_size=SESSIONS, max_size=SESSIONS),
    passes=st.lists(sizes, min_size=1, max_size=3),
    alone=st.booleans(),
)
def test_rows_have_the_bits_of_single_rows_whatever_shares_their_pass(
    subject: Subject, starts: list[int], passes: list[list[int]], alone: bool
) -> None:
    engine = subject.engine
    sessions = [engine.open_session() for _ in range(SESSIONS)]
    try:
        for session, start in zip(sessions, starts, strict=True):
            if start:
                read(engine, session, subject.text[:start], [64])
        at = list(starts)
        for counts in passes:
            batch = [
                SequenceTokens(session, subject.text[start : start + count])
                for session, start, count in zip(sessions, at, counts, strict=False)
            ]
            for place, (rows, found) in enumerate(
                zip(batch, forward_rows(engine, batch, alone=alone), strict=True)
            ):
                stop = at[place] + len(rows.tokens)
                np.testing.assert_array_equal(found, subject.alone[at[place] : stop])
                engine.commit_kv(rows.session, range(len(rows.tokens)))
                at[place] = stop
    finally:
        for session in sessions:
            engine.close_session(session)


def test_what_was_dropped_leaves_no_trace(subject: Subject) -> None:
    engine, text = subject.engine, subject.text
    wrong = [(token + 1) % engine.vocabulary for token in text]
    with opened(engine) as session, opened(engine) as other:
        read(engine, other, text[:90], [64])
        for start in range(0, 96, 8):
            engine.forward([SequenceTokens(session, wrong[start : start + 12])])
            engine.commit_kv(session, [])
            (found,) = forward_rows(engine, [SequenceTokens(session, text[start : start + 8])])
            np.testing.assert_array_equal(found, subject.alone[start : start + 8])
            engine.commit_kv(session, range(8))
        (found,) = forward_rows(engine, [SequenceTokens(other, text[90:94])])
        np.testing.assert_array_equal(found, subject.alone[90:94])


def test_only_the_rows_that_are_wanted_have_logits(subject: Subject) -> None:
    engine, text = subject.engine, subject.text
    with opened(engine) as one, opened(engine) as other:
        batch = [SequenceTokens(one, text[:9], logits=1), SequenceTokens(other, text[:5], logits=0)]
        (found,) = forward_rows(engine, batch[:1])
        engine.commit_kv(one, [])
        assert len(found) == 1
        logits = engine.forward(batch)
        np.testing.assert_array_equal(logits[0].row(0), subject.alone[8])


def test_padded_rows_have_the_same_bits(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    expected = tiny_models.read_alone(engine, TEXT, [1])
    padded = engine.reconfigured(replace(OPTIONS, row_multiple=4))
    np.testing.assert_array_equal(tiny_models.read_alone(padded, TEXT, [1, 3, 64]), expected)


def test_what_lies_behind_a_row_is_not_looked_at(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    expected = tiny_models.read_alone(engine, TEXT, [1])
    for buffers in engine.model.pages._buffers.values():
        buffers[...] = 1e4
    np.testing.assert_array_equal(tiny_models.read_alone(engine, TEXT, [16, 1, 4, 40]), expected)


# --- memory and passes ----------------------------------------------------------------------------


def test_a_lane_has_pages_for_all_places(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    assert engine._kv.table.shape[1] * PAGE >= OPTIONS.context


def test_chunks_and_short_rows_share_passes_up_to_the_largest_decoder(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    passes = recorded_passes(monkeypatch)
    sessions = [engine.open_session() for _ in range(SESSIONS)]
    counts = (20, 60, 40)
    found = engine.forward(
        [
            SequenceTokens(session, TEXT[:count])
            for session, count in zip(sessions, counts, strict=True)
        ]
    )
    assert passes == [[20, 40], [60]]
    for logits in found[1:]:
        np.testing.assert_array_equal(logits.row(19), found[0].row(19))


def test_more_rows_than_a_decoder_takes_are_refused(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    assert engine.most_rows == 64
    session = engine.open_session()
    with pytest.raises(EngineError, match="65 rows of one session; a pass takes 64"):
        engine.forward([SequenceTokens(session, TEXT[:65])])


def test_a_tree_that_no_decoder_takes_with_its_copies_is_computed_row_by_row(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a page that two branches fill each has its own, and the second one lacks the rows that
    they share."""
    engine = OpenVinoEngine.load(checkpoint, replace(OPTIONS, branches=2))
    shared, branch, other = TEXT[10:50], TEXT[50:60], [token ^ 1 for token in TEXT[50:60]]
    parents = [*range(-1, 49), 39, *range(50, 59)]
    passes = recorded_passes(monkeypatch)
    with opened(engine) as session:
        read(engine, session, TEXT[:10], [10])
        passes.clear()
        rows = SequenceTokens(session, [*shared, *branch, *other], parents)
        (found,) = forward_rows(engine, [rows])
        engine.commit_kv(session, [*range(40), *range(50, 60)])
        (behind,) = forward_rows(engine, [SequenceTokens(session, TEXT[60:64])])
    assert passes[:60] == [[1]] * 60
    for at, path in ((50, [*shared, *branch]), (60, [*shared, *other])):
        expected = tiny_models.read_alone(engine, [*TEXT[:10], *path, *TEXT[60:64]], [1])
        np.testing.assert_array_equal(found[at - 10 : at], expected[50:60])
    np.testing.assert_array_equal(found[:40], expected[10:50])
    np.testing.assert_array_equal(behind, expected[60:])


# --- how models are loaded ------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, Any]:
    tiny_models.save_pair(tmp_path)
    return {
        "target": {"path": tmp_path / "target", "dtype": "float32"},
        "draft": {"path": tmp_path / "draft", "dtype": "float32"},
        "limits": {"prompt_tokens": 64, "context_tokens": 128},
        "cache": {"slots": 2},
        "engine": "openvino",
    }


def test_a_target_of_subtrees_has_the_bits_of_one_of_chains(pair: dict[str, Any]) -> None:
    engines = [
        load_engine(load_settings(**pair, speculation={"query": query}), "target")
        for query in ("chain", "subtree")
    ]
    assert all(engine.row_invariant for engine in engines)
    found, expected = (tiny_models.read_alone(engine, TEXT, [20, 1, 4]) for engine in engines)
    np.testing.assert_array_equal(found, expected)


def test_compressed_matrices_are_tried_first_and_each_padding_with_fixed_rows(
    tmp_path: Path,
) -> None:
    tiny_models.build(FAMILIES["qwen2"]).bfloat16().save_pretrained(tmp_path)
    engine = OpenVinoEngine.load(tmp_path, replace(OPTIONS, compressed=True))
    tried = [(o.compressed, o.row_multiple, bool(o.graph_rows)) for o in engine.variants]
    assert tried == sorted(tried, key=lambda kind: (not kind[0], kind[1], not kind[2]))
    assert len(set(engine.variants)) == len(tried) == 2 * (1 + 5)


def test_decoders_that_were_not_compiled_are_compiled_when_they_are_wanted(
    checkpoint: Path,
) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    expected = tiny_models.read_alone(engine, TEXT, [1])
    # In the end that for any pass is there, and serves as well.
    wanted = [((2, 32), 32), ((), MAX_PASS_ROWS), ((1, 4), MAX_PASS_ROWS)]
    for graph_rows, most_rows in wanted:
        engine = engine.reconfigured(replace(OPTIONS, graph_rows=graph_rows))
        assert engine.most_rows == most_rows
        np.testing.assert_array_equal(tiny_models.read_alone(engine, TEXT, [2, 1, 1]), expected)


# --- growing trees --------------------------------------------------------------------------------

PENDING = 64
TREES = replace(OPTIONS, context=128, branches=0, pending=PENDING)


@pytest.mark.parametrize("seed", range(3))
def test_trees_grow_over_borders_of_pages_as_they_do_in_torch(checkpoint: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    paged = OpenVinoEngine.load(checkpoint, TREES)
    engines = paged, TorchEngine.load(checkpoint, TREES)
    free = paged._kv.free_pages
    for engine in engines:
        sessions = [engine.open_session() for _ in range(SESSIONS)]
    forests: dict[int, list[int]] = {session: [] for session in sessions}
    for session in sessions:
        text = TEXT[: draw.integers(SHORT + 1, 2 * PAGE)]
        assert_ranked_alike(engines, [SequenceTokens(session, text, ranking=Ranking(4))])
        for engine in engines:
            engine.commit_kv(session, range(len(text)))
    for _ in range(8):
        batch = []
        for session, parents in forests.items():
            first = len(parents)
            above = draw.integers(FOLLOWS_PREFIX, first + np.arange(4)).tolist()
            parents += above
            tokens = draw.integers(0, 90, len(above)).tolist()
            batch.append(SequenceTokens(session, tokens, above, ranking=Ranking(4)))
        assert_ranked_alike(engines, batch)
        for session, parents in forests.items():
            path = path_to(int(draw.integers(FOLLOWS_PREFIX, len(parents))), parents)[:2]
            left = below(path[-1] if path else FOLLOWS_PREFIX, parents)
            for engine in engines:
                engine.commit_kv(session, path, left)
            renumbered = {entry: at for at, entry in enumerate(left)}
            forests[session] = [renumbered.get(parents[entry], FOLLOWS_PREFIX) for entry in left]
    for session in sessions:
        paged.close_session(session)
    assert paged._kv.free_pages == free


def assert_ranked_alike(engines: Sequence[Engine], batch: Sequence[SequenceTokens]) -> None:
    for some, others in zip(*(engine.forward(batch) for engine in engines), strict=True):
        (ids, values), (other_ids, other_values) = some.best(), others.best()
        np.testing.assert_array_equal(ids, other_ids)
        np.testing.assert_allclose(values, other_values, atol=CLOSE)


def path_to(entry: int, parents: Sequence[int]) -> list[int]:
    return [] if entry == FOLLOWS_PREFIX else [*path_to(parents[entry], parents), entry]


def below(entry: int, parents: Sequence[int]) -> list[int]:
    return [
        candidate
        for candidate in range(len(parents))
        if candidate != entry and (entry == FOLLOWS_PREFIX or entry in path_to(candidate, parents))
    ]


def test_a_cache_that_the_system_has_no_room_for_is_refused_by_its_settings(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> NoReturn:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr("card.engines.openvino.pages.mmap.mmap", no_room)
    with pytest.raises(EngineError, match=r"cache\.slots"):
        OpenVinoEngine.load(checkpoint, TREES)
