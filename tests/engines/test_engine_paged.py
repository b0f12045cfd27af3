"""Paged attention: the logits of `transformers`, the bits of single rows, and when it is used."""

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
from card.engines.calibration import (
    ConfigurableEngine,
    check_row_invariance,
    choice,
    make_row_invariant,
)
from card.engines.layout import SHORT
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.paged.cache import PAGE, PagedCache
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
    paged=True,
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
def test_a_trained_target_says_what_it_says_under_masks(dtype: Dtype, close: float) -> None:
    skip_unless_computed_in(dtype)
    paged = replace(OPTIONS, context=512, dtype=dtype, compressed=True)
    engines = [
        OpenVinoEngine.load(TARGET, options) for options in (paged, replace(paged, paged=False))
    ]
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
    assert engine.options.paged
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
    engine.alone = alone
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
                zip(batch, forward_rows(engine, batch), strict=True)
            ):
                stop = at[place] + len(rows.tokens)
                np.testing.assert_array_equal(found, subject.alone[at[place] : stop])
                engine.commit_kv(rows.session, range(len(rows.tokens)))
                at[place] = stop
    finally:
        for session in sessions:
            engine.close_session(session)
        engine.alone = False


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
        found = forward_rows(engine, batch[:1]) + forward_rows(engine, batch[:1])
        assert [len(rows) for rows in found] == [1, 1]
        logits = engine.forward(batch)
        np.testing.assert_array_equal(logits[0].row(0), subject.alone[8])


def test_what_lies_behind_a_row_is_not_looked_at(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    expected = tiny_models.read_alone(engine, TEXT, [1])
    for buffers in engine.model.pages._buffers.values():  # type: ignore[union-attr]
        buffers[...] = 1e4
    np.testing.assert_array_equal(tiny_models.read_alone(engine, TEXT, [16, 1, 4, 40]), expected)


# --- memory and passes ----------------------------------------------------------------------------


def test_a_lane_has_pages_for_all_places(checkpoint: Path) -> None:
    engine = OpenVinoEngine.load(checkpoint, OPTIONS)
    assert isinstance(engine._kv, PagedCache)
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


# --- when it is used ------------------------------------------------------------------------------


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


def test_both_models_have_it(pair: dict[str, Any]) -> None:
    chosen = load_settings(**pair)
    for role in ("target", "draft"):
        assert load_engine(chosen, role).options.paged  # type: ignore[attr-defined]


def test_queries_for_subtrees_have_masks(pair: dict[str, Any]) -> None:
    chosen = load_settings(**pair, speculation={"query": "subtree"})
    engine = load_engine(chosen, "target")
    assert engine.row_invariant
    assert not engine.options.paged  # type: ignore[attr-defined]


def test_compressed_matrices_are_tried_first_and_paged_attention_before_masks(
    tmp_path: Path,
) -> None:
    tiny_models.build(FAMILIES["qwen2"]).bfloat16().save_pretrained(tmp_path)
    engine = OpenVinoEngine.load(tmp_path, replace(OPTIONS, compressed=True))
    tried = [(o.compressed, o.paged, o.row_multiple) for o in engine.variants]
    assert tried == sorted(tried, key=lambda kind: (not kind[0], not kind[1], kind[2]))
    assert len(set(engine.variants)) == len(tried) == 2 * (2 + 2 * 5)


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


def test_rows_that_influence_each_other_send_it_back_to_masks(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = check_row_invariance
    tried: list[bool] = []

    def only_under_masks(engine: ConfigurableEngine) -> bool:
        tried.append(engine.options.paged)
        return not engine.options.paged and check(engine)

    monkeypatch.setattr(choice, "check_row_invariance", only_under_masks)
    engine = make_row_invariant(OpenVinoEngine.load(checkpoint, OPTIONS))
    assert engine.row_invariant
    assert not engine.options.paged
    assert tried == sorted(tried, reverse=True)
    expected = tiny_models.read_alone(OpenVinoEngine.load(checkpoint, OPTIONS), TEXT, [64])
    assert np.abs(tiny_models.read_alone(engine, TEXT, [64]) - expected).max() < CLOSE


# --- growing trees --------------------------------------------------------------------------------

PENDING = 64
TREES = replace(OPTIONS, context=128, branches=0, pending=PENDING)


@pytest.mark.parametrize("seed", range(3))
def test_trees_grow_over_borders_of_pages_as_they_do_under_masks(
    checkpoint: Path, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    paged = OpenVinoEngine.load(checkpoint, TREES)
    engines = paged, TorchEngine.load(checkpoint, replace(TREES, paged=False))
    free = paged._kv.free_pages  # type: ignore[union-attr]
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
    assert paged._kv.free_pages == free  # type: ignore[union-attr]


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

    monkeypatch.setattr("card.engines.openvino.paged.cache.mmap.mmap", no_room)
    with pytest.raises(EngineError, match=r"cache\.slots"):
        OpenVinoEngine.load(checkpoint, TREES)
