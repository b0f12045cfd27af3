"""A draft with fewer or more ids than its target reads every text and proposes what both have."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_models
from tiny_models import random_tokens
from transformers import LlamaConfig

from card.engines import SequenceTokens
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine
from card.engines.vocabulary import SharedIds, SharedVocabulary
from card.sampling import SamplingParameters
from card.speculation.drafters.growth.frontier import (
    Child,
    noise_for,
    ranked_children,
    ranking_of,
    worthwhile_children,
)

pytestmark = pytest.mark.usefixtures("one_thread")

OWN = 96


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    directory = tmp_path_factory.mktemp("draft")
    shape = {**tiny_models.FAMILIES["llama2"].to_dict(), "vocab_size": OWN}
    tiny_models.build(LlamaConfig(**shape)).save_pretrained(directory)
    return TorchEngine.load(
        directory, EngineOptions(context=128, sessions=2, paths=0, pending=64, dtype="float32")
    )


PARAMETERS = [
    SamplingParameters(),
    SamplingParameters(temperature=1.0, seed=3),
    SamplingParameters(temperature=1.0, top_k=5, seed=3),
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("target_size", [40, OWN, 200])
def test_no_id_is_proposed_that_only_one_has(
    engine: TorchEngine, parameters: SamplingParameters, target_size: int
) -> None:
    text = random_tokens(40, vocabulary=min(OWN, target_size))
    unmasked = SharedVocabulary(target_size, OWN)
    first = {children[0][0] for children in children_of(engine, unmasked, text, parameters)}
    only_one = tuple(sorted(first)[::2])  # some that the draft would have proposed first
    assert only_one
    shared = SharedVocabulary(target_size, OWN, only_one)
    for children in children_of(engine, shared, text, parameters):
        assert children
        tokens = [child.token for child in children]
        assert not set(tokens) & set(only_one)
        assert max(tokens) < target_size
        assert len(set(tokens)) == len(tokens)


def children_of(
    engine: TorchEngine, shared: SharedVocabulary, text: list[int], parameters: SamplingParameters
) -> list[list[Child]]:
    draft = SharedIds(engine, shared)
    assert draft.vocabulary == shared.target_size
    session = draft.open_session()
    positions = list(range(1, len(text) + 1))
    ranking = ranking_of(positions, parameters, noise_for(parameters, draft))
    (logits,) = draft.forward([SequenceTokens(session, text, ranking=ranking)])
    draft.close_session(session)
    found = ranked_children(logits, positions, parameters)
    return [worthwhile_children(row) for row in found]


def test_ids_that_the_draft_does_not_have_are_read(engine: TorchEngine) -> None:
    draft = SharedIds(engine, SharedVocabulary(200, OWN))
    session = draft.open_session()
    (logits,) = draft.forward([SequenceTokens(session, [5, 199, 7], logits=1)])
    row = logits.row(0)
    assert row.shape == (200,)
    assert np.isfinite(row[:OWN]).all()
    assert (row[OWN:] == -np.inf).all()
    draft.commit_kv(session, range(3))
    assert draft.length(session) == 3
    draft.close_session(session)
