"""Rows that look places up by themselves stand behind their sessions' prefixes, in order."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from card.engines import FOLLOWS_PREFIX, SequenceTokens
from card.engines.layout import PageLayout


def values(array: NDArray[np.int64] | None) -> list[int] | None:
    return None if array is None else array.tolist()


def test_rows_of_sessions_stand_behind_their_prefixes() -> None:
    layout = PageLayout(sessions=2, row_multiple=1)
    one, other = layout.open(), layout.open()
    layout.plan([SequenceTokens(other, [7, 8, 9])])
    layout.commit_kv(other, range(2), ())
    planned = layout.plan([SequenceTokens(one, [1, 2], logits=1), SequenceTokens(other, [3])])
    assert values(planned.tokens) == [1, 2, 3]
    assert values(planned.positions) == [0, 1, 2]
    assert values(planned.logit_rows) == [1, 2]
    assert planned.groups == []
    assert values(planned.destination.lane) == [one, one, other]  # type: ignore[arg-type]


def test_padding_repeats_the_last_row_and_has_no_logits() -> None:
    layout = PageLayout(sessions=1, row_multiple=4)
    planned = layout.plan([SequenceTokens(layout.open(), [5, 6, 7])])
    assert values(planned.tokens) == [5, 6, 7, 7]
    assert values(planned.positions) == [0, 1, 2, 2]
    assert values(planned.logit_rows) == [0, 1, 2]


def test_a_layout_of_pages_knows_one_chain_and_keeps_its_beginning() -> None:
    layout = PageLayout(sessions=1, row_multiple=1)
    session = layout.open()
    with pytest.raises(ValueError, match="no branches"):
        layout.plan([SequenceTokens(session, [1, 2], [FOLLOWS_PREFIX, FOLLOWS_PREFIX])])
    layout.plan([SequenceTokens(session, [1, 2])])
    with pytest.raises(ValueError, match="in order"):
        layout.commit_kv(session, [1], ())
    with pytest.raises(ValueError, match="pending"):
        layout.commit_kv(session, [0], [1])
    assert layout.length(session) == 0
