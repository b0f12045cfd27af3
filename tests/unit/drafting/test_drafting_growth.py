"""What each growth rule makes of a draft model, seen in the trees that the target gets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import EMPTY_PATH, FakeEngine, FakeModel
from one_process import GREEDY, OneProcess, autoregressive, request_of, settings_of

from card.cache import ROOT, SlotRequest, Tree
from card.sampling import SamplingParameters
from card.speculation.drafters.growth import GROWTHS

MODEL = FakeModel(agreement=0.9)
SAMPLED = SamplingParameters(temperature=0.9, seed=3)
PROMPT = [1, 2, 3]


def request(growth: str, parameters: SamplingParameters = GREEDY, gamma: int = 3) -> SlotRequest:
    return replace(request_of(PROMPT, 60, "card", parameters, gamma), growth=growth)


def grown(wanted: SlotRequest, **speculation: Any) -> tuple[Tree, FakeEngine]:
    """The whole tree below a text's first token, and the engine that it was grown on."""
    draft = FakeEngine(MODEL, tree=True)
    with OneProcess(FakeEngine(FakeModel(), tree=False), draft, settings_of(**speculation)) as both:
        stream = both.open(wanted)
        assert both.target.step()
        while both.draft.step():
            pass
        found = both.pool.target_slot(0).tree(stream.session_id, MODEL.vocabulary)
        assert found is not None
        return found, draft


def depths_of(tree: Tree) -> list[int]:
    depths: list[int] = []
    for parent in tree.parent:
        depths.append(0 if parent == ROOT else depths[parent] + 1)
    return depths


def children_of(tree: Tree, node: int) -> list[int]:
    return [child for child, parent in enumerate(tree.parent) if parent == node]


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED])
def test_sampled_growth_gives_each_depth_its_number_of_siblings(
    parameters: SamplingParameters,
) -> None:
    tree, _ = grown(request("sampled", parameters), siblings=[4, 2, 3])
    assert Counter(depths_of(tree)) == {0: 4, 1: 4 * 2, 2: 4 * 2 * 3}
    for node in range(ROOT, len(tree.token)):
        below = [tree.token[child] for child in children_of(tree, node)]
        assert len(set(below)) == len(below), "without replacement"


def test_fan_out_prepares_for_every_answer_to_the_chain() -> None:
    gamma, fan_out = 3, 2
    tree, _ = grown(request("fan_out", gamma=gamma), fan_out=fan_out, nodes=2048, width=8)
    chain = [ROOT]
    for _ in range(gamma):
        chain.append(max(children_of(tree, chain[-1]), key=lambda node: tree.score[node]))
    for place, node in enumerate(chain):
        below = sorted(children_of(tree, node), key=lambda child: -tree.score[child])
        forks = [child for child in below if child not in chain][:fan_out]
        assert len(forks) == fan_out, f"at place {place}"
        for fork in forks:
            prepared = fork
            for _ in range(gamma):
                prepared = children_of(tree, prepared)[0]


def test_branches_begin_where_the_draft_is_in_doubt_and_nowhere_else() -> None:
    doubt = 0.5
    tree, _ = grown(request("branch"), doubt=doubt, doubt_branches=4)
    forks = 0
    for node in range(ROOT, len(tree.token)):
        below = children_of(tree, node)
        if not below:
            continue
        above = 0.0 if node == ROOT else tree.score[node]
        best = max(2.718281828 ** (tree.score[child] - above) for child in below)
        forks += len(below) > 1
        assert (len(below) > 1) == (best <= doubt)
    assert forks


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED])
def test_every_growth_rule_is_of_use(growth: str, parameters: SamplingParameters) -> None:
    wanted = request(growth, parameters)
    target = FakeModel()
    with OneProcess(
        FakeEngine(target, tree=False), FakeEngine(MODEL, tree=True), settings_of()
    ) as both:
        stream = both.open(wanted)
        assert both.run([stream], draft_steps=4) == [autoregressive(target, wanted)]
        counters = stream.counters
        assert counters.accepted >= 15
        assert counters.layers >= counters.lost_layers > 0


class LastTokenAlone(FakeModel):
    """Whatever ends alike goes on alike."""

    def extended(self, path: int, token: int) -> int:
        return super().extended(EMPTY_PATH, token)


def test_shared_nodes_save_rows_of_draft_passes_and_commits_run_through_copies() -> None:
    model, wanted, rows, steps = LastTokenAlone(), request("graph"), {}, {}
    for shared_tokens in (1, 8):
        target, draft = FakeEngine(model, tree=False), FakeEngine(model, tree=True)
        with OneProcess(target, draft, settings_of(shared_tokens=shared_tokens)) as both:
            stream = both.open(wanted)
            assert both.run([stream], draft_steps=3) == [autoregressive(model, wanted)]
            rows[shared_tokens] = sum(len(batch[0].tokens) for batch in draft.batches)
            steps[shared_tokens] = stream.counters.steps
            assert (stream.counters.saved_rows > 0) == (shared_tokens == 1)
    assert rows[1] < rows[8]
    assert steps[1] <= steps[8]
