"""N-gram proposals: what followed the longest known context when it last occurred."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.cache import ROOT, Candidates
from card.speculation.ngram import (
    LONGEST_CONTEXT,
    MOST_FOLLOWERS,
    FollowerTable,
    NgramProposer,
)
from card.speculation.ngram_file import table_of

texts = st.lists(st.integers(0, 3), max_size=30)


def naive_followers(text: list[int], context: list[int]) -> list[int]:
    """What followed the longest end of `context` that occurs in `text` and is followed, the latest
    first."""
    for size in range(min(LONGEST_CONTEXT, len(context)), 0, -1):
        tail = context[-size:]
        places = range(len(text) - 1, size - 1, -1)
        found = dict.fromkeys(text[at] for at in places if text[at - size : at] == tail)
        if found:
            return list(found)[:MOST_FOLLOWERS]
    return []


def paths_of(found: Candidates) -> list[list[int]]:
    """Tokens from the root to every node."""
    paths: list[list[int]] = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        paths.append([*(paths[parent] if parent != ROOT else []), token])
    return paths


@given(
    texts,
    st.lists(st.integers(0, 3), max_size=7),
    st.integers(0, 12),
    st.integers(1, 4),
    st.integers(1, 7),
)
def test_every_node_of_a_trie_followed_its_context_and_is_no_likelier_than_what_is_above(
    text: list[int], behind: list[int], limit: int, branches: int, piece: int
) -> None:
    proposer = NgramProposer()
    for at in range(0, len(text), piece):
        proposer.extend(text[at : at + piece])
    found = proposer.candidates(behind, limit, branches)
    paths = paths_of(found)
    for path, parent, chance in zip(paths, found.parents, found.chances, strict=True):
        assert path[-1] in naive_followers(text, [*text, *behind, *path[:-1]])
        assert 0 < chance <= (1.0 if parent == ROOT else found.chances[parent])
    assert len(set(map(tuple, paths))) == len(paths) <= limit
    leaves = set(range(len(paths))) - set(found.parents)
    assert len(leaves) <= branches
    assert found.is_chain or branches > 1
    assert bool(limit and naive_followers(text, [*text, *behind])) == bool(paths)


def test_a_text_that_repeats_itself_has_a_high_hit_rate_and_one_that_never_does_a_low_one() -> None:
    repeating, surprising = NgramProposer(), NgramProposer()
    repeating.extend([1, 2, 3] * 30)
    surprising.extend([at * (at // 2) % 7 for at in range(90)])
    assert repeating.hit_rate > 0.9
    assert len(repeating.propose([], 8)) == 8
    assert surprising.hit_rate < repeating.hit_rate


def test_chances_follow_how_often_contexts_of_that_length_were_right() -> None:
    """Behind two known tokens comes what came before, behind one never."""
    proposer = NgramProposer()
    for at in range(60):
        proposer.extend([0, 1, 2, 10 + at])
    proposer.extend([0])
    sure = proposer.candidates([], 1).chances[0]
    doubtful = proposer.candidates([1, 2], 1).chances[0]
    assert sure > 0.9 > 0.3 > doubtful


def test_a_text_without_repetition_gives_no_proposal() -> None:
    proposer = NgramProposer()
    assert proposer.propose([], 4) == []
    proposer.extend(range(20))
    assert proposer.propose([], 4) == []


def test_what_was_not_used_for_longest_is_forgotten_and_followers_are_few() -> None:
    table = FollowerTable(most_contexts=2)
    for token in range(6):
        table.add([(1,)], token)
    table.add([(2,)], 7)
    table.add([(1,)], 5)
    table.add([(3,)], 8)
    assert dict(table) == {(1,): (5, 4, 3, 2), (3,): (8,)}


def test_a_shared_table_tells_what_another_text_taught_and_a_frozen_one_learns_nothing() -> None:
    shared, frozen = FollowerTable(), table_of([[9, 4, 9, 4]])
    NgramProposer(shared).extend([1, 2, 3])
    other = NgramProposer(shared, frozen)
    assert other.candidates([1], 2).tokens == [2, 3]
    assert other.candidates([9], 1).tokens == [4]
    other.extend([9, 5])
    assert frozen.longest([(9,)]) == (1, (4,))
    assert NgramProposer().candidates([1], 2).tokens == []


@pytest.mark.parametrize("wrong", [True, False])
def test_a_frozen_table_that_is_wrong_is_soon_given_little_chance(wrong: bool) -> None:
    frozen = table_of(2 * [[token, token + (2 if wrong else 1)] for token in range(90)])
    proposer = NgramProposer(frozen=frozen)
    proposer.extend(range(60))
    chance = proposer.candidates([], 1).chances[0]
    assert chance < 0.1 if wrong else chance > 0.9


def test_a_branch_counts_wherever_it_begins() -> None:
    """Behind 0 came 1 and 4, behind each of them two tokens."""
    proposer = NgramProposer()
    proposer.extend([0, 1, 2, 9, 0, 1, 3, 9, 0, 4, 5, 9, 0, 4, 6, 8, 0])
    for branches in (2, 3, 4):
        found = proposer.candidates([], 24, branches)
        assert len(set(range(len(found))) - set(found.parents)) == branches
