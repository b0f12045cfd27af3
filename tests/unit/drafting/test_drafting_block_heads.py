"""Heads that make blocks from the target's states alone: SpecFormer and the CTC drafter."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import groupby, product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_heads import TAPPED, random_head

from card.engines import Ranking, SequenceTokens
from card.speculation.drafters.heads.base import StatesEngine
from card.speculation.drafters.heads.block_engine import BlockEngine
from card.speculation.drafters.heads.ctc import CtcChain
from card.speculation.drafters.heads.formats import CTC, SPECFORMER
from card.speculation.drafters.heads.passes import CompiledPasses

TEXT, VOCABULARY = [2, 4, 6, 8, 10, 12], 24


def block(engine: StatesEngine, known: int, text: list[int], places: int) -> NDArray[np.float32]:
    """[places, ids] log-probabilities by id; the states of the first `known` tokens are known."""
    session = engine.open_session()
    values = np.random.default_rng(0).standard_normal((len(TEXT), TAPPED), np.float32)
    engine.hear(session, 0, (values.view(np.uint32) >> 16).astype(np.uint16)[:known])
    tokens = [*text, *[-1] * (places - 1)]
    rows = SequenceTokens(session, tokens, logits=places, ranking=Ranking(VOCABULARY // 2))
    ids, found = engine.forward([rows])[0].best()
    engine.close_session(session)
    ordered: NDArray[np.float32] = np.take_along_axis(found, ids.argsort(axis=1), axis=1)
    return ordered


def test_places_of_tokens_known_by_now_are_left_out_when_states_come_late() -> None:
    engine = random_head(VOCABULARY, mask_id=-1, kind=SPECFORMER)
    early, late = block(engine, 4, TEXT[:5], 3), block(engine, 4, TEXT, 2)
    np.testing.assert_allclose(early[1:], late, atol=1e-6)
    session = engine.open_session()
    assert engine.places(session, 6) == 0  # without any state there is no block
    engine.hear(session, 0, np.full((4, TAPPED), 0x3F00, np.uint16))
    assert engine.places(session, 6) == 2


def collapsed(slots: tuple[int, ...], blank: int) -> tuple[int, ...]:
    return tuple(slot for slot, _ in groupby(slots) if slot != blank)


@pytest.mark.parametrize("taken", [(), (0,), (1, 1), (0, 2), (2, 2, 1)])
def test_token_has_the_chance_of_all_slots_that_begin_so_when_collapsed(
    taken: tuple[int, ...],
) -> None:
    """Against all rows of five slots over three tokens and a blank."""
    torch.manual_seed(1)
    chances = torch.softmax(torch.randn(5, 4), dim=-1)
    expected = np.zeros(3)
    for slots in product(range(4), repeat=5):
        text = collapsed(slots, blank=3)
        if len(text) > len(taken) and text[: len(taken)] == taken:
            expected[text[len(taken)]] += np.prod([chances[at, it] for at, it in enumerate(slots)])
    chain = CtcChain(chances)
    for token in taken:
        chain.take(token, token)
    np.testing.assert_allclose(chain.logits()[0].exp().numpy(), expected, atol=1e-6)


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")
@pytest.mark.parametrize("kind", [SPECFORMER, CTC])
def test_openvino_computes_what_torch_computes(kind: str) -> None:
    engine = random_head(VOCABULARY, mask_id=-1, kind=kind)
    assert isinstance(engine, BlockEngine)
    expected = [block(engine, known, TEXT[:5], 2) for known in (3, 4)]
    engine._passes = CompiledPasses(engine._head, threads=1)
    for known, values in zip((3, 4), expected, strict=True):
        np.testing.assert_allclose(block(engine, known, TEXT[:5], 2), values, atol=1e-4)
