"""A row that overflows spoils what sees it, and nothing else: not the rows before it in its pass,
not what its session reads once it is rejected, not a later session of its lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from numpy.typing import NDArray
from this_processor import skip_unless_computed_in
from tiny_models import forward_rows, opened, random_tokens, read, read_alone
from transformers import PreTrainedModel

from card.engines import FOLLOWS_PREFIX, Ranking, SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import Dtype, EngineOptions
from card.engines.processor import multiplies_in_tiles
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

AnyEngine = TorchEngine | OpenVinoEngine

OVERFLOWS = 7
"""The token whose rows do."""
TEXT = [token for token in random_tokens(60) if token != OVERFLOWS][:40]


def overflow(model: PreTrainedModel, projection: str, layer: int, huge: float) -> None:
    """One coordinate of the residual stream is of one token alone, and a projection makes it more
    than its dtype holds. So that what a norm makes of zero, if it is not zero, makes nothing of the
    others, a second coordinate takes it away again."""
    with torch.no_grad():
        model.model.embed_tokens.weight[:, :2] = 0.0
        model.model.embed_tokens.weight[OVERFLOWS, 0] = 10.0
        for block in model.model.layers:
            block.self_attn.o_proj.weight[:2] = 0.0
            block.mlp.down_proj.weight[:2] = 0.0
        model.model.layers[layer].input_layernorm.weight[:2] = 1.0
        weight = getattr(model.model.layers[layer].self_attn, projection).weight
        weight[:, 0], weight[:, 1] = huge, -huge


@dataclass(frozen=True)
class Case:
    """An engine and what it computes in."""

    engine_class: type[AnyEngine]
    dtype: Dtype
    huge: float

    def load(self, directory: Path, paths: int) -> AnyEngine:
        # Tiles take other products for few rows; the check at load finds the padding out.
        in_tiles = self.dtype == "bfloat16" and multiplies_in_tiles()
        multiple = 1 if self.engine_class is OpenVinoEngine and not in_tiles else 16
        return self.engine_class.load(
            directory,
            EngineOptions(256, 2, paths, 64, dtype=self.dtype, threads=1, row_multiple=multiple),
        )


CASES = {
    "torch": Case(TorchEngine, "float32", 2.0**127),
    "torch bfloat16": Case(TorchEngine, "bfloat16", 2.0**127),
    "openvino": Case(OpenVinoEngine, "float32", 2.0**127),
    "openvino bfloat16": Case(OpenVinoEngine, "bfloat16", 2.0**127),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    found = CASES[request.param]
    if found.dtype == "bfloat16":
        skip_unless_computed_in(found.dtype)
    return found


@pytest.fixture(
    scope="module",
    params=[("k_proj", 0), ("v_proj", 1)],
    ids=lambda where: f"{where[0]} of layer {where[1]}",
)
def load(
    request: pytest.FixtureRequest, case: Case, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], AnyEngine]:
    """An engine with so many paths and fresh buffers."""
    directory = tmp_path_factory.mktemp("overflows")
    model = tiny_models.build(tiny_models.FAMILIES["llama3"])
    projection, layer = request.param
    overflow(model, projection, layer, case.huge)
    model.save_pretrained(directory)
    return lambda paths: case.load(directory, paths)


@pytest.fixture(scope="module")
def by_single_rows(load: Callable[[int], AnyEngine]) -> NDArray[np.float32]:
    """Logits of `TEXT`, of an engine that met nothing else."""
    found = read_alone(load(1), TEXT, [1])
    assert np.isfinite(found).all()
    return found


def test_a_rejected_candidate_changes_nothing(
    load: Callable[[int], AnyEngine], by_single_rows: NDArray[np.float32]
) -> None:
    engine = load(2)
    with opened(engine) as session:
        read(engine, session, TEXT[:20], [20])
        (found,) = forward_rows(engine, [SequenceTokens(session, [*TEXT[20:22], OVERFLOWS, 5])])
        assert not np.isfinite(found[2]).any(), "the candidate does not overflow"
        assert found[:2].tobytes() == by_single_rows[20:22].tobytes()
        engine.commit_kv(session, [0, 1])
        wrong_branch = SequenceTokens(
            session, [OVERFLOWS, *TEXT[22:24]], [FOLLOWS_PREFIX, FOLLOWS_PREFIX, 1]
        )
        (found,) = forward_rows(engine, [wrong_branch])
        assert found[1:].tobytes() == by_single_rows[22:24].tobytes()
        engine.commit_kv(session, [1, 2])
        assert read(engine, session, TEXT[24:], [1]).tobytes() == by_single_rows[24:].tobytes()


def test_a_later_session_finds_nothing_of_one_that_overflowed(
    load: Callable[[int], AnyEngine], by_single_rows: NDArray[np.float32]
) -> None:
    engine = load(2)
    broken = read_alone(engine, [*TEXT, OVERFLOWS, *TEXT], [40])
    assert not np.isfinite(broken[-1]).any()
    assert read_alone(engine, TEXT, [1]).tobytes() == by_single_rows.tobytes()


def test_a_growing_tree_ranks_as_if_a_branch_that_overflows_were_not_there(
    load: Callable[[int], AnyEngine],
) -> None:
    found = []
    for wrong in (5, OVERFLOWS):
        engine = load(0)
        with opened(engine) as session:
            engine.forward([SequenceTokens(session, TEXT[:20], logits=1, ranking=Ranking(3))])
            engine.commit_kv(session, range(20))
            grown = SequenceTokens(session, [wrong, 3, 4], [FOLLOWS_PREFIX, FOLLOWS_PREFIX, 1])
            grown.ranking = Ranking(3)
            first = engine.forward([grown])[0].best()
            engine.commit_kv(session, [1], [2])
            below = SequenceTokens(session, [9], [0], ranking=Ranking(3))
            found.append([values[1:].tobytes() for values in first])
            found[-1] += [values.tobytes() for values in engine.forward([below])[0].best()]
    assert found[0] == found[1]
