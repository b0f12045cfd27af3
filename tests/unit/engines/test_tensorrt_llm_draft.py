"""The draft's side: spines and side branches grow the tree, commits prune it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_runtime import ScriptedOutput, ScriptedRuntime
from tensorrt_double import GEOMETRY, VOCABULARY, Cache

from card.cache import CardSlot, DraftProgress, Finish, Pool, Tree
from card.drafting import DraftLoop, make_drafters
from card.engines.tensorrt_llm.chains import TensorRTChains
from card.settings import Settings

PROMPT = [5, 6, 7]
LIKELY, UNLIKELY = math.log(0.6), math.log(0.3)


class Draft:
    """The loop under test, and the slot's tree as the target reads it."""

    def __init__(self, directory: Path, side_branches: int = 1) -> None:
        self.cache = Cache(directory)
        self.runtime = ScriptedRuntime()
        pool = Pool.open(directory, os.getpid(), GEOMETRY)
        assert pool is not None
        settings = Settings.model_validate(
            {
                "speculation": {"width": 2, "depth": 6},
                "draft": {
                    "engine": "tensorrt_llm",
                    "tensorrt_llm": {"side_branches": side_branches, "side_branch_tokens": 3},
                },
            }
        )
        self.loop = DraftLoop(
            make_drafters(TensorRTChains(self.runtime, 60), settings), pool, apart=True
        )

    def open(self, **config: object) -> CardSlot:
        slot = self.cache.open(PROMPT, **config)  # type: ignore[arg-type]
        self.settle()
        return slot

    def settle(self) -> None:
        """Let the event loop and the draft's loop do all that there is to do."""
        self.runtime.settle()
        while self.loop.step():
            self.runtime.settle()
        self.loop.step()
        self.runtime.settle()

    def give(
        self, output: ScriptedOutput, tokens: list[int], others: list[int], end: bool = False
    ) -> None:
        """Tokens, each with another beside it that is half as likely."""
        told = [{t: LIKELY, o: UNLIKELY} for t, o in zip(tokens, others, strict=True)]
        self.runtime.give(output, tokens, "length" if end else None, told)
        self.settle()

    def commit(self, tokens: list[int]) -> None:
        self.cache.pool.target_slot(0).commit(
            tokens, [False] * len(tokens), [0.0] * len(tokens), Finish.RUNNING
        )
        self.settle()

    def tree(self, slot: CardSlot) -> Tree:
        found = self.cache.pool.target_slot(0).tree(slot.session_id, VOCABULARY)
        assert found is not None
        return found

    def paths(self, slot: CardSlot) -> dict[tuple[int, ...], float]:
        """Log-probability by path."""
        tree = self.tree(slot)
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tree.token, tree.parent, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return dict(zip(paths, tree.score, strict=True))

    def progress(self, slot: CardSlot) -> DraftProgress:
        return self.cache.pool.target_slot(0).draft_progress(
            slot.session_id, self.tree(slot).root_length
        )


@pytest.fixture
def draft(tmp_path: Path) -> Iterator[Draft]:
    made = Draft(tmp_path)
    yield made
    made.runtime.shutdown()
    made.cache.pool.unlink()


def test_tree_grows_when_spine_and_side_branch_give_tokens(draft: Draft) -> None:
    slot = draft.open()
    (spine,) = draft.runtime.requests
    assert spine.prompt == PROMPT
    assert (spine.sampling.max_tokens, spine.sampling.logprobs) == (6, 2)
    assert spine.sampling.ignore_eos, "it runs on behind an end token"
    draft.give(spine, [8, 9], [18, 19])
    paths = draft.paths(slot)
    assert set(paths) == {(8,), (18,), (8, 9), (8, 19)}
    assert paths[8, 19] == pytest.approx(LIKELY + UNLIKELY)
    _, branch = draft.runtime.requests
    assert (branch.prompt, branch.sampling.max_tokens) == ([*PROMPT, 18], 3)
    draft.give(branch, [30], [31])
    assert {(18, 30), (18, 31)} <= set(draft.paths(slot))


def test_side_branch_is_aborted_when_a_commit_prunes_it(draft: Draft) -> None:
    slot = draft.open()
    spine = draft.runtime.requests[0]
    draft.give(spine, [8, 9, 10, 11, 12, 13], [18, 19, 20, 21, 22, 23], end=True)
    branch = draft.runtime.requests[1]
    draft.commit([8])
    assert branch.was_aborted
    assert draft.tree(slot).root_length == len(PROMPT) + 1
    assert (9, 10) in draft.paths(slot)
    assert (18,) not in draft.paths(slot)


def test_new_spine_starts_when_the_tree_lacks_the_correction(draft: Draft) -> None:
    slot = draft.open()
    spine = draft.runtime.requests[0]
    draft.give(spine, [8, 9], [18, 19])
    draft.commit([40])
    assert spine.was_aborted
    assert draft.runtime.requests[-1].prompt == [*PROMPT, 40]
    draft.give(spine, [10], [11])  # on its way while it was aborted
    assert draft.paths(slot) == {}
    assert slot.counters().restarts == 1


@pytest.mark.parametrize("right", [True, False])
def test_spine_catches_up_when_it_is_behind_the_text_and_right(draft: Draft, right: bool) -> None:
    slot = draft.open()
    (spine,) = draft.runtime.requests
    draft.commit([8, 9])
    assert draft.runtime.requests == [spine]
    draft.give(spine, [8, 9, 10] if right else [8, 18, 19], [18, 19, 20])
    assert spine.was_aborted is not right
    assert set(draft.paths(slot)) == ({(10,), (20,)} if right else set())


def test_waiting_target_hears_when_the_draft_has_given_all(tmp_path: Path) -> None:
    draft = Draft(tmp_path, side_branches=0)
    slot = draft.open(decoding="draft_then_verify", num_draft_tokens=8)
    spine = draft.runtime.requests[0]
    draft.give(spine, [8, 9], [18, 19])
    assert draft.progress(slot) == DraftProgress(2)
    draft.give(spine, [10, 11, 12, 13], [20, 21, 22, 23], end=True)
    assert draft.progress(slot) == DraftProgress(4 + 2, exhausted=True)
    draft.runtime.shutdown()
    draft.cache.pool.unlink()
