"""A draft with one mask drafts as AMD's code does (PARD, arXiv 2504.18583), token for token.

The recipe: the input is the newly accepted tokens, then K - 1 masks, causal, at ordinary positions;
the last K rows of logits are K drafts; the KV of the masks is dropped.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from tiny_models import VOCABULARY, random_tokens
from transformers import AutoModelForCausalLM, DynamicCache

from card.cache import SlotRequest
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine
from card.sampling import SamplingParameters
from card.settings.draft_files import mask_ids_of
from card.speculation.drafters import DRAFTERS, DraftConfig, DraftedSession, Drafter
from card.speculation.drafters.interface import GrowingTree

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = 8
MASK = VOCABULARY - 1
PROMPT = random_tokens(9, seed=3)
ACCEPTED = [1, 3, 8, 2]
"""Tokens of a block that the target accepts before its correction, step by step."""
OPTIONS = EngineOptions(
    context=256, sessions=1, paths=0, pending=64, dtype="float32", graph_rows=(1, 16, 64)
)


class AmdRecipe:
    """The recipe, on a model of `transformers`."""

    def __init__(self, directory: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._cache = DynamicCache()

    @torch.inference_mode()
    def draft(self, accepted: list[int]) -> list[int]:
        """The next `BLOCK` tokens behind newly accepted ones."""
        answer = self._model(
            torch.tensor([accepted + [MASK] * (BLOCK - 1)]),
            past_key_values=self._cache,
            use_cache=True,
        )
        self._cache.crop(1 - BLOCK)  # the masks
        drafted: list[int] = answer.logits[0, -BLOCK:].argmax(dim=-1).tolist()
        return drafted


def likeliest(tree: GrowingTree) -> list[int]:
    """The path of likeliest children from the root."""
    tokens, node = [], -1
    while below := [child for child, parent in enumerate(tree.parent) if parent == node]:
        node = max(below, key=tree.score.__getitem__)
        tokens.append(tree.token[node])
    return tokens


def drafted(drafter: Drafter, session: DraftedSession) -> list[int]:
    """The block that one pass makes behind the session's text."""
    (nodes,) = drafter.propose([session])
    assert nodes is not None
    assert nodes.passes == BLOCK
    assert nodes.replaces
    session.tree.clear()
    session.tree.add(nodes)
    return likeliest(session.tree)


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_blocks_are_those_of_amds_recipe(
    family: str, engine_class: type[TorchEngine] | type[OpenVinoEngine], tmp_path: Path
) -> None:
    tiny_models.save(tmp_path, family)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text()) | {"pard_token": MASK, "spd_type": "pard"}
    file.write_text(json.dumps(config))
    recipe = AmdRecipe(tmp_path)
    masks = mask_ids_of(config)
    drafter = DRAFTERS["parallel"](
        engine_class.load(tmp_path, OPTIONS), DraftConfig(mask_ids=masks, block=BLOCK)
    )
    request = SlotRequest(np.array(PROMPT, np.int64), 100, "card", SamplingParameters(), BLOCK)
    session = DraftedSession(0, request, [*PROMPT], GrowingTree(64))
    drafter.open(session)
    expected = recipe.draft(PROMPT)
    assert drafted(drafter, session) == expected
    for step, count in enumerate(ACCEPTED):
        committed = [*expected[:count], (expected[count % BLOCK] + step + 1) % MASK]
        session.tokens += committed
        drafter.commit(session, session.tree.re_root(committed))
        expected = recipe.draft(committed)
        assert drafted(drafter, session) == expected
