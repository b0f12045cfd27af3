"""Hostile inputs to what is read from outside without a server: settings, cache, tokenizer."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from hostile_values import BYTES, FLOATS, INTEGERS
from hypothesis import strategies as st
from pydantic import BaseModel
from real_pair import TARGET
from trying import try_inputs

from card.cache import (
    ROOT,
    Geometry,
    Pool,
    PoolError,
    Tree,
    best_chain,
    best_subtree,
    descend,
)
from card.serving.requests.vocabulary import Vocabulary
from card.settings import Settings, SettingsError, load_settings
from card.text import Detokenizer

# --- the settings file ---------------------------------------------------------------------------

_JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)


def _fields(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every field, sections included."""
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, (*prefix, name))


@st.composite
def _documents(draw: st.DrawFn) -> bytes:
    """YAML with known fields and any values, or no YAML at all."""
    if draw(st.integers(0, 5)) == 0:
        return draw(BYTES)
    document: dict[str, Any] = {}
    paths = st.sampled_from([*_fields(Settings), ("zzz",), ("limits", "zzz")])
    for path in draw(st.lists(paths, max_size=4)):
        place: Any = document
        for part in path[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                break
        else:
            place[path[-1]] = draw(_JUNK)
    return yaml.safe_dump(document).encode()


def fuzz_settings(seed: int, examples: int) -> int:
    """Any file is either settings or refused with a message that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "settings.yaml")

        def check(content: bytes) -> None:
            file.write_bytes(content)
            try:
                assert load_settings(file).cache.slots >= 1
            except SettingsError as error:
                if str(file) not in str(error):
                    raise AssertionError("the refusal names no file") from error

        return try_inputs(_documents(), check, seed=seed, examples=examples)


def fuzz_environment(seed: int, examples: int) -> int:
    """Any value of an environment variable is either a setting or refused."""
    names = st.sampled_from(["CARD_" + "__".join(path).upper() for path in _fields(Settings)])
    values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)

    def check(variables: dict[str, str]) -> None:
        with mock.patch.dict(os.environ, variables), contextlib.suppress(SettingsError):
            load_settings()

    return try_inputs(
        st.dictionaries(names, values, max_size=3), check, seed=seed, examples=examples
    )


# --- the cache -----------------------------------------------------------------------------------

_GEOMETRY = Geometry(slots=2, nodes=64, prompt=32, output=32, bad_words=4, bad_word_tokens=16)
_VOCABULARY = 50
_SESSION_ID = 77
_DRAFT_FIELDS = ("flip", "tree_session_id", "root_length", "node_count", "passes", "exhausted")
_WORDS = st.one_of(
    st.sampled_from([0, 1, 2, -1, 63, 64, 65, _SESSION_ID, (1 << 63) - 1, -(1 << 63)]),
    st.integers(-70, 70),
)
_SCORES = st.one_of(st.floats(-9, 0), st.floats())


@contextlib.contextmanager
def _pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool.create(Path(folder), 1, _GEOMETRY)
        yield pool
        pool.close()


@st.composite
def _trees(draw: st.DrawFn) -> dict[str, Any]:
    """What a draft might leave in its fields, most often nearly a tree."""
    count = draw(st.integers(0, 64))
    lie: dict[str, Any] = {name: [draw(_WORDS), draw(_WORDS)] for name in _DRAFT_FIELDS}
    lie["flip"] = draw(_WORDS)
    if draw(st.integers(0, 4)):
        lie["tree_session_id"] = [_SESSION_ID] * 2
        lie["node_count"] = [count] * 2
    tokens = [draw(st.integers(0, _VOCABULARY - 1)) for _ in range(count)]
    parents = [draw(st.integers(ROOT, n - 1)) for n in range(count)]
    scores = [draw(_SCORES) for _ in range(count)]
    for _ in range(draw(st.integers(0, 3)) if count else 0):
        at = draw(st.integers(0, count - 1))
        draw(st.sampled_from([tokens, parents]))[at] = draw(_WORDS)
    return lie | {"node_token": tokens, "node_parent": parents, "node_score": scores}


def fuzz_tree(seed: int, examples: int) -> int:
    """Whatever a draft publishes, a query gives a few tokens of the vocabulary, or none."""
    with _pool() as pool:

        def check(lie: dict[str, Any]) -> None:
            record = pool.slots[0]
            for name in _DRAFT_FIELDS:
                record[name] = lie[name]
            for name in ("node_token", "node_parent", "node_score"):
                record[name][:, : len(lie[name])] = lie[name]
            slot = pool.target_slot(0)
            slot.draft_progress(_SESSION_ID, 3)
            if (tree := slot.tree(_SESSION_ID, _VOCABULARY)) is not None:
                _query(tree)

        return try_inputs(_trees(), check, seed=seed, examples=examples)


def _query(tree: Tree) -> None:
    nodes = [ROOT, *range(len(tree.token))][:5]
    for node in nodes:
        descend(tree, node, [1, 2, 3])
        for found in (best_chain(tree, node, 7), best_subtree(tree, node, 7, 3)):
            assert len(found.tokens) == len(found.parents) <= 7
            assert all(0 <= token < _VOCABULARY for token in found.tokens)
            assert all(ROOT <= parent < at for at, parent in enumerate(found.parents))


def fuzz_pool_file(seed: int, examples: int) -> int:
    """Any bytes in the place of a pool are a pool, none, or refused; and never in the way."""
    with _pool() as pool:
        sound = pool.path.read_bytes()

    changes = st.lists(
        st.tuples(st.integers(0, len(sound) - 1), st.binary(min_size=1, max_size=16)), max_size=6
    )
    contents = st.one_of(
        changes.map(lambda found: _changed(sound, found)),
        st.integers(0, len(sound)).map(lambda size: sound[:size]),
        BYTES,
    )
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, f"card-{os.getuid()}-1")
        home.mkdir(mode=0o700)

        def check(content: bytes) -> None:
            (home / "pool-0").write_bytes(content)
            with contextlib.suppress(PoolError):
                found = Pool.open(Path(folder), 1, _GEOMETRY)
                assert found is not None
                found.close()
            made = Pool.create(Path(folder), 1, _GEOMETRY)
            assert made.epoch != 0
            made.unlink()
            made.close()
            home.mkdir(mode=0o700)

        return try_inputs(contents, check, seed=seed, examples=examples)


def _changed(sound: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    content = bytearray(sound)
    for at, piece in changes:
        content[at : at + len(piece)] = piece[: len(content) - at]
    return bytes(content)


# --- the tokenizer -------------------------------------------------------------------------------


@functools.cache
def _vocabulary() -> Vocabulary:
    return Vocabulary.load(TARGET)


def fuzz_prompts(seed: int, examples: int) -> int:
    """Any text becomes ids of the vocabulary, and they become a text again."""
    vocabulary = _vocabulary()
    texts = st.one_of(
        st.text(max_size=300),
        st.builds(lambda t, n: t * n, st.text(min_size=1, max_size=3), st.integers(1, 3000)),
        BYTES.map(lambda raw: raw.decode("utf-8", "ignore")),
    )

    def check(text: str) -> None:
        ids = vocabulary.tokenizer.encode(text).ids
        assert all(0 <= token < vocabulary.size for token in ids)
        vocabulary.tokenizer.decode(ids).encode()
        vocabulary.bad_word_tokens((text[:200],))

    return try_inputs(texts, check, seed=seed, examples=examples)


@st.composite
def _token_streams(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], tuple[str, ...]]:
    """Prompt, tokens, where the stream is cut, stop words."""
    ids = st.integers(0, _vocabulary().size - 1)
    tokens = draw(st.lists(ids, max_size=40))
    cuts = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    words = st.text(st.sampled_from("ab \n():=\u00e9"), min_size=1, max_size=4)
    return draw(st.lists(ids, max_size=8)), tokens, cuts, tuple(draw(st.lists(words, max_size=3)))


def fuzz_texts(seed: int, examples: int) -> int:
    """Any tokens, however they arrive, give the same text; and it is one that can be sent."""
    vocabulary = _vocabulary()

    def check(stream: tuple[list[int], list[int], list[int], tuple[str, ...]]) -> None:
        prompt, tokens, cuts, words = stream
        texts = {
            _written(Detokenizer(vocabulary.tokenizer, prompt, words), tokens, at)
            for at in (cuts, [], list(range(len(tokens))))
        }
        (text,) = texts
        text.encode()
        assert not any(word in text for word in words)

    return try_inputs(_token_streams(), check, seed=seed, examples=examples)


def _written(detokenizer: Detokenizer, tokens: list[int], cuts: list[int]) -> str:
    text, start = "", 0
    for stop in (*cuts, len(tokens)):
        piece = tokens[start:stop]
        text += detokenizer.push(piece, [True] * len(piece)).text
        start = stop
    return text + detokenizer.finish().text


BOUNDARIES = {
    "settings file": fuzz_settings,
    "settings in the environment": fuzz_environment,
    "candidate trees": fuzz_tree,
    "pool files": fuzz_pool_file,
    "prompts": fuzz_prompts,
    "token streams": fuzz_texts,
}
"""What is tried, by name: functions of a seed and a number of examples."""
