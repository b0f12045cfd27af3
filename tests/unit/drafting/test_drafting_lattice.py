"""Paths through the places of a block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from card.speculation.drafters.growth.frontier import Child
from card.speculation.drafters.growth.lattice import NgramWeights, best_path, likeliest_paths


def place(**chances: float) -> list[Child]:
    """Children by name, a token each, likeliest first."""
    found = [
        Child(ord(name), math.log(chance), math.log(chance)) for name, chance in chances.items()
    ]
    return sorted(found, key=lambda child: -child.rank)


def words(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


PLACES = [place(a=0.6, b=0.4), place(c=0.7, d=0.3), place(e=0.9, f=0.1)]


def test_paths_are_the_likeliest_products_and_parents_stand_before_children() -> None:
    paths = likeliest_paths(PLACES, most=8)
    found = {words(paths.path(node)): math.exp(paths.total[node]) for node in range(len(paths))}
    products = {
        a + c + e: p * q * r
        for a, p in {"a": 0.6, "b": 0.4}.items()
        for c, q in {"": 1.0, "c": 0.7, "d": 0.3}.items()
        for e, r in ({"": 1.0, "e": 0.9, "f": 0.1} if c else {"": 1.0}).items()
    }
    likeliest = sorted(products, key=lambda path: -products[path])[:8]
    assert found == pytest.approx({path: products[path] for path in likeliest})
    assert all(parent < node for node, parent in enumerate(paths.parent))


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_best_path_is_whole_before_other_paths_get_nodes(most: int) -> None:
    paths = likeliest_paths(PLACES, most)
    assert len(paths) == most
    assert words(paths.path(min(most, len(PLACES)) - 1)) == "ace"[:most]


def test_beam_takes_the_path_that_ngrams_join() -> None:
    """Place by place "ac" is the likeliest; the n-grams say that only "ad" and "bc" occur."""
    weigh = NgramWeights(
        lambda path: {"a": {ord("d"): 0.5}, "b": {ord("c"): 0.9}}.get(words(path), {}), 1.0
    )
    places = [place(a=0.501, b=0.499), place(c=0.6, d=0.4)]
    assert words([child.token for child in best_path(places)]) == "ac"
    assert words([child.token for child in best_path(places, weigh)]) == "bc"
    paths = likeliest_paths(places, 4, weigh)
    assert [words(paths.path(node)) for node in (0, 1)] == ["b", "bc"]


def test_ngrams_add_tokens_and_unknown_contexts_change_nothing() -> None:
    children = place(a=0.5, b=0.2)
    assert NgramWeights(lambda _: {}, 1.0)([], children) == children
    found = NgramWeights(lambda _: {ord("x"): 0.9}, 1.0)([7], children)
    assert found[0].token == ord("x")
    assert sum(math.exp(child.logprob) for child in found) == pytest.approx(0.7)


def test_noise_is_added_after_mixing() -> None:
    """So it counts once for every token, whoever knows it."""
    noise = {ord("a"): 1.0, ord("b"): 3.0, ord("x"): 6.0}
    children = [
        Child(child.token, child.logprob + noise[child.token] - 4.0, 0.0)
        for child in place(a=0.5, b=0.2)
    ]
    weigh = NgramWeights(
        lambda _: {ord("x"): 0.01, ord("a"): 0.9}, 1.0, lambda _, tokens: [noise[t] for t in tokens]
    )
    assert weigh([7], children)[0].token == ord("x")
    unknown = noise | {ord("x"): -math.inf}
    weigh = NgramWeights(
        lambda _: {ord("x"): 0.9}, 1.0, lambda _, tokens: [unknown[t] for t in tokens]
    )
    assert ord("x") not in {child.token for child in weigh([7], children)}
