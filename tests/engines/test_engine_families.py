"""Every family's logits are those of `transformers`, however the rows reach the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from numpy.typing import NDArray
from tiny_models import FAMILIES, SLIDING_WINDOW, forward_rows, random_tokens, read_alone
from transformers import AutoModelForCausalLM, PreTrainedModel

from card.engines import FOLLOWS_PREFIX, Engine, Ranking, SequenceTokens
from card.engines.draft_vocabulary import DRAFT_VOCABULARY
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

AnyEngine = TorchEngine | OpenVinoEngine

CLOSE = 1e-4
"""Largest difference to `transformers` in float32."""
WAYS: list[dict[str, Any]] = [
    {"paths": 1},
    {"paths": 0, "pending": 256},
    {"paths": 1, "graph_rows": (1, 4, 16, 64)},
]
"""Chains, growing trees and, OpenVINO's alone, passes of fixed numbers of rows."""

TEXT = random_tokens(100)
PREFIX = 90

# Eight rows behind the prefix in four branches, two of which part below the first row:
#   0 ─ 1 ─ 4        5 (follows the prefix) ─ 6
#     └ 2 ─ 7        3 (follows the prefix)
TREE = random_tokens(8, seed=1)
PARENTS = [FOLLOWS_PREFIX, 0, 0, FOLLOWS_PREFIX, 1, FOLLOWS_PREFIX, 5, 2]
LEAVES = (3, 4, 6, 7)


@dataclass(frozen=True)
class Checkpoint:
    model: PreTrainedModel
    directory: Path
    expected: NDArray[np.float32]
    """Logits of `TEXT` by `transformers`, [tokens, vocabulary]."""
    engine_class: type[AnyEngine]

    def engine(self, **how: Any) -> AnyEngine:
        options = EngineOptions(context=SLIDING_WINDOW, sessions=2, dtype="float32", threads=1)
        return self.engine_class.load(self.directory, replace(options, **how))


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    engine_class: type[AnyEngine],
) -> Checkpoint:
    directory = tmp_path_factory.mktemp(request.param)
    model = tiny_models.save(directory, request.param)
    expected = tiny_models.reference_logits(model, TEXT)
    assert expected.std() > 1.0, "logits so small that an error would not show"
    return Checkpoint(model, directory, expected, engine_class)


def path_to(row: int) -> list[int]:
    """Rows of `TREE` from the prefix down to `row`."""
    path = [row]
    while PARENTS[path[0]] != FOLLOWS_PREFIX:
        path.insert(0, PARENTS[path[0]])
    return path


def assert_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < CLOSE


def test_logits_equal_those_of_transformers(checkpoint: Checkpoint) -> None:
    for way in WAYS if checkpoint.engine_class is OpenVinoEngine else WAYS[:2]:
        engine = checkpoint.engine(**way)
        for chunks in ((64,), (1,), (5, 17, 3)):
            assert_close(read_alone(engine, TEXT, chunks), checkpoint.expected)


def read_tree_in_one_pass(engine: Engine, session: int) -> NDArray[np.float32]:
    return forward_rows(engine, [SequenceTokens(session, TREE, PARENTS)])[0]


def grow_tree_layer_by_layer(engine: Engine, session: int) -> NDArray[np.float32]:
    found = np.empty((len(TREE), engine.vocabulary), np.float32)
    entry: dict[int, int] = {FOLLOWS_PREFIX: FOLLOWS_PREFIX}
    while len(entry) <= len(TREE):
        layer = [r for r, parent in enumerate(PARENTS) if r not in entry and parent in entry]
        rows = SequenceTokens(session, [TREE[r] for r in layer], [entry[PARENTS[r]] for r in layer])
        found[layer] = forward_rows(engine, [rows])[0]
        entry |= {row: len(entry) - 1 + i for i, row in enumerate(layer)}
    return found


@pytest.mark.parametrize(
    ("paths", "forward_tree"),
    [(4, read_tree_in_one_pass), (0, grow_tree_layer_by_layer)],
    ids=["chains", "growing_tree"],
)
def test_each_branch_of_a_tree_equals_transformers_on_its_own_path(
    checkpoint: Checkpoint,
    paths: int,
    forward_tree: Callable[[Engine, int], NDArray[np.float32]],
) -> None:
    engine = checkpoint.engine(paths=paths, pending=256)
    session = engine.open_session()
    tiny_models.read(engine, session, TEXT[:PREFIX], [64])
    found = forward_tree(engine, session)
    for leaf in LEAVES:
        path = path_to(leaf)
        tokens = TEXT[:PREFIX] + [TREE[row] for row in path]
        expected = tiny_models.reference_logits(checkpoint.model, tokens)
        assert_close(found[path], expected[PREFIX:])


def test_best_ranks_by_perturbed_logits_where_noise_is_given(checkpoint: Checkpoint) -> None:
    engine = checkpoint.engine(paths=0, pending=256)
    one, other = engine.open_session(), engine.open_session()
    noise = np.random.default_rng(0).gumbel(size=(3, engine.vocabulary)).astype(np.float32)
    batch = [
        SequenceTokens(one, TEXT, logits=2, ranking=Ranking(4)),
        SequenceTokens(other, TEXT, logits=3, ranking=Ranking(5, 0.7, list(noise))),
    ]
    plain, perturbed = engine.forward(batch)
    for logits, count, last, expected in (
        (plain, 4, 2, torch.from_numpy(checkpoint.expected[-2:])),
        (perturbed, 5, 3, torch.from_numpy(checkpoint.expected[-3:] / np.float32(0.7) + noise)),
    ):
        ids, values = logits.best()
        assert ids.shape == (last, count)
        best = expected.log_softmax(-1).topk(count)
        assert ids.tolist() == best.indices.tolist()
        np.testing.assert_allclose(values, best.values.numpy(), atol=2 * CLOSE)


@pytest.mark.parametrize(("family", "listed"), [("llama3", 40), ("smollm", 64)])
def test_a_draft_ranks_the_ids_that_it_was_given_and_no_others(
    tmp_path: Path, family: str, listed: int
) -> None:
    model = tiny_models.save(tmp_path, family)
    expected = tiny_models.reference_logits(model, TEXT)
    vocabulary = expected.shape[1]
    ranked = np.sort(np.random.default_rng(1).choice(vocabulary, listed, replace=False))
    (tmp_path / DRAFT_VOCABULARY).write_text(json.dumps({"ids": ranked.tolist()}))
    noise = np.random.default_rng(0).gumbel(size=(3, vocabulary)).astype(np.float32)
    options = EngineOptions(
        context=128, sessions=2, paths=0, pending=32, dtype="float32", graph_rows=(4, 128)
    )
    engine = OpenVinoEngine.load(tmp_path, options)
    assert engine.ranked_ids.tolist() == ranked.tolist()
    session = engine.open_session()
    engine.forward([SequenceTokens(session, TEXT[:-3], logits=0)])
    engine.commit_kv(session, range(len(TEXT) - 3))
    for ranking, perturbed in (
        (Ranking(5), expected[-3:]),
        (Ranking(5, 0.7, list(noise[:, ranked])), expected[-3:] / np.float32(0.7) + noise),
    ):
        rows = SequenceTokens(session, TEXT[-3:], ranking=ranking)
        logits = engine.forward([rows])[0]
        ids, values = logits.best()
        best = torch.from_numpy(perturbed[:, ranked]).log_softmax(-1).topk(5)
        assert ids.tolist() == ranked[best.indices.numpy()].tolist()
        np.testing.assert_allclose(values, best.values.numpy(), atol=2 * CLOSE)
        engine.commit_kv(session, [])
        with pytest.raises(TypeError, match="only their likeliest ids"):
            logits.row(0)
    target = OpenVinoEngine.load(tmp_path, replace(options, paths=1, pending=0))
    assert_close(read_alone(target, TEXT, [64]), expected)


def test_longrope_has_its_long_divisors_in_an_engine_of_a_longer_context(
    tmp_path: Path, engine_class: type[AnyEngine]
) -> None:
    model = tiny_models.save(tmp_path, "phi3_longrope")
    text = random_tokens(model.config.original_max_position_embeddings + 20)
    options = EngineOptions(context=len(text), sessions=1, dtype="float32", threads=1)
    found = read_alone(engine_class.load(tmp_path, options), text, [64])
    assert_close(found, tiny_models.reference_logits(model, text))


def test_a_checkpoint_in_shards_and_in_bfloat16_reads_like_one_file(
    tmp_path: Path, engine_class: type[AnyEngine]
) -> None:
    model = tiny_models.build(FAMILIES["llama3"]).bfloat16()
    model.save_pretrained(tmp_path / "whole")
    in_float32 = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    options = EngineOptions(context=SLIDING_WINDOW, sessions=1, dtype="float32")
    whole, shards = (
        read_alone(engine_class.load(tmp_path / name, options), TEXT, [64])
        for name in ("whole", "shards")
    )
    np.testing.assert_array_equal(whole, shards)
    assert_close(whole, tiny_models.reference_logits(in_float32, TEXT))
