"""A draft with masks makes a block of tokens in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from fake_engine import FakeEngine, FakeModel, fake
from one_process import GREEDY, OneProcess, Stream, autoregressive, request_of, settings_of

from card.cache import ROOT, Tree
from card.sampling import SamplingParameters, gumbel

BLOCK, MASK = 4, 2  # of `settings_of`
PROMPT = [1, 5, 3]
GAMMA = 4
SAMPLED = SamplingParameters(temperature=0.8, seed=5)


@dataclass(frozen=True)
class MaskedModel(FakeModel):
    """A mask stands for the likeliest token, so a block is what greedy decoding writes."""

    def extended(self, path: int, token: int) -> int:
        if token == MASK:
            token = int(self.row(path).argmax())
        return super().extended(path, token)


def never_masked(model: FakeModel) -> FakeModel:
    """The first model of these seeds that writes no mask and ends no path with one."""
    for seed in range(200):
        found = MaskedModel(seed=seed)
        if MASK not in autoregressive(found, request_of(PROMPT, 40)):
            return found
    raise AssertionError


MODEL = never_masked(FakeModel())


@contextmanager
def pair(**speculation: Any) -> Iterator[OneProcess]:
    target, draft = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    with OneProcess(target, draft, settings_of(drafter="parallel", **speculation)) as both:
        yield both


def opened(both: OneProcess, decoding: str, parameters: SamplingParameters = GREEDY) -> Stream:
    return both.open(request_of(PROMPT, 40, decoding, parameters, GAMMA))


def tree_of(both: OneProcess, stream: Stream) -> Tree:
    found = both.pool.target_slot(stream.slot.index).tree(stream.session_id, MODEL.vocabulary)
    assert found is not None
    return found


def likeliest(tree: Tree) -> list[int]:
    tokens, node = list[int](), ROOT
    while below := [child for child, parent in enumerate(tree.parent) if parent == node]:
        node = max(below, key=tree.score.__getitem__)
        tokens.append(tree.token[node])
    return tokens


def test_turns_take_one_pass_for_a_block_and_commit_all_of_it() -> None:
    with pair() as both:
        stream = opened(both, "draft_then_verify")
        both.run([stream])
        assert stream.output == autoregressive(MODEL, request_of(PROMPT, 40))
        passes = [[len(rows.tokens) for rows in batch] for batch in fake(both.draft_engine).batches]
        committed = GAMMA + 1  # and the target's own token
        assert passes[0] == [len(PROMPT) + BLOCK - 1]
        assert len(passes) <= 1 + len(stream.output) // committed + 1


def test_later_blocks_stand_behind_the_likeliest_path() -> None:
    with pair() as both:
        stream = opened(both, "card")
        both.draft.step()
        expected = autoregressive(MODEL, request_of(PROMPT, 40))
        assert likeliest(tree_of(both, stream)) == expected[:BLOCK]
        both.draft.step()
        assert likeliest(tree_of(both, stream)) == expected[: 2 * BLOCK]


def test_every_place_is_ranked_under_its_own_noise() -> None:
    with pair() as both:
        stream = opened(both, "card", SAMPLED)
        both.draft.step()
        tree = tree_of(both, stream)
    path = [*PROMPT]
    best = list[int]()
    for place in range(BLOCK):
        row = MODEL.row_after([*path, *[MASK] * place]).astype(np.float64)
        noise = gumbel(SAMPLED.seed, np.int64(len(PROMPT) + place), np.arange(len(row)))
        best.append(int((row / SAMPLED.temperature + noise).argmax()))
    assert likeliest(tree) == best
