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
from fuzz_gateway import fuzz_gateway
from hostile_values import BYTES, FLOATS, INTEGERS
from hypothesis import strategies as st
from pydantic import BaseModel
from real_pair import TARGET
from trying import try_inputs

from card.cache import Geometry, Pool, PoolError
from card.serving.requests.vocabulary import Vocabulary
from card.settings import Settings, SettingsError, load_settings

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


@contextlib.contextmanager
def _pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool.create(Path(folder), 1, _GEOMETRY)
        yield pool
        pool.close()


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


BOUNDARIES = {
    "settings file": fuzz_settings,
    "settings in the environment": fuzz_environment,
    "pool files": fuzz_pool_file,
    "prompts": fuzz_prompts,
    "bodies to the gateway": fuzz_gateway,
}
"""What is tried, by name: functions of a seed and a number of examples."""
