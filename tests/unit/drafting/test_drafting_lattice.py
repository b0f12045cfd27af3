"""Paths through the places of a block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from card.cache import ROOT
from card.speculation.drafters.growth.frontier import Child
from card.speculation.drafters.growth.lattice import (
    NgramWeights,
    Paths,
    Weigh,
    best_path,
    likeliest_paths,
    unweighed,
)
from card.speculation.drafters.interface import GrowingTree, Nodes, path_to


def place(**chances: float) -> list[Child]:
    """Children by name, a token each, likeliest first."""
    found = [
        Child(ord(name), math.log(chance), math.log(chance)) for name, chance in chances.items()
    ]
    return sorted(found, key=lambda child: -child.rank)


def words(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def grown(
    places: Sequence[list[Child]], most: int, weigh: Weigh = unweighed
) -> dict[str, tuple[int, float]]:
    """The parent of each path, and its probability, in the order of the nodes."""
    paths = Paths(GrowingTree(64))
    likeliest_paths(paths, ROOT, places, most, weigh)
    found: dict[str, tuple[int, float]] = {}
    for node, (parent, rank) in enumerate(zip(paths.parent, paths.rank, strict=True)):
        path = words(path_to(node, paths.token, paths.parent))
        found[path] = parent, math.exp(rank) * (found[path[:-1]][1] if path[1:] else 1.0)
    return found


PLACES = [place(a=0.6, b=0.4), place(c=0.7, d=0.3), place(e=0.9, f=0.1)]


def test_paths_are_the_likeliest_products_and_parents_stand_before_children() -> None:
    found = grown(PLACES, most=8)
    products = {
        a + c + e: p * q * r
        for a, p in {"a": 0.6, "b": 0.4}.items()
        for c, q in {"": 1.0, "c": 0.7, "d": 0.3}.items()
        for e, r in ({"": 1.0, "e": 0.9, "f": 0.1} if c else {"": 1.0}).items()
    }
    likeliest = sorted(products, key=lambda path: -products[path])[:8]
    assert {path: chance for path, (_, chance) in found.items()} == pytest.approx(
        {path: products[path] for path in likeliest}
    )
    assert all(parent < node for node, (parent, _) in enumerate(found.values()))


def test_beam_takes_the_path_that_ngrams_join() -> None:
    """Place by place "ac" is the likeliest; the n-grams say that only "ad" and "bc" occur."""
    weigh = NgramWeights(
        lambda path: {"a": {ord("d"): 0.5}, "b": {ord("c"): 0.9}}.get(words(path), {}), 1.0
    )
    places = [place(a=0.501, b=0.499), place(c=0.6, d=0.4)]
    assert words([child.token for child in best_path(places)]) == "ac"
    assert words([child.token for child in best_path(places, weigh)]) == "bc"
    assert [*grown(places, 4, weigh)][:2] == ["b", "bc"]


def test_ngrams_add_tokens_and_unknown_contexts_change_nothing() -> None:
    children = place(a=0.5, b=0.2)
    assert NgramWeights(lambda _: {}, 1.0)([], children) == children
    found = NgramWeights(lambda _: {ord("x"): 0.9}, 1.0)([7], children)
    assert found[0].token == ord("x")
    assert sum(math.exp(child.logprob) for child in found) == pytest.approx(0.7)


def test_noise_is_added_after_mixing() -> None:
    """So it counts once for every token, whichever table knows it."""
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


def test_paths_take_nodes_that_the_tree_has_and_stop_when_it_is_full() -> None:
    tree = GrowingTree(4)
    tree.add(Nodes([ord("a"), ord("c")], [ROOT, 0], [-0.5, -0.4]))
    paths = Paths(tree)
    totals = likeliest_paths(paths, ROOT, PLACES, 8)
    assert (paths.token, paths.parent) == ([ord("e"), ord("b")], [1, ROOT])
    assert totals == pytest.approx([math.log(0.6), math.log(0.42), math.log(0.378)])
