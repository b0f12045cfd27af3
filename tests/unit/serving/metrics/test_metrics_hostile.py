"""Whatever a draft leaves in its counters, no metric is ever decreased."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from card.cache import DRAFT_COUNTERS, Geometry, Pool, choice_words
from card.serving.metrics.progress import ProgressReader

GEOMETRY = Geometry(slots=3, nodes=64, prompt=32, output=32, bad_words=4, bad_word_tokens=16)
WORDS = st.one_of(
    st.sampled_from([0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 62, -(1 << 62)]), st.integers(0, 99)
)


@given(st.lists(st.lists(WORDS, min_size=GEOMETRY.slots, max_size=GEOMETRY.slots), max_size=6))
def test_garbage_in_the_drafts_counters_never_decreases_a_metric(looks: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool.create(Path(folder), 1, GEOMETRY)
        pool.slots["session_id"] = pool.slots["commit_session_id"] = [7, 8, 9]
        pool.slots["tree_session_id"] = [[7, 7], [8, 8], [9, 9]]
        pool.slots["pacing"] = choice_words("card")
        reader = ProgressReader(pool)
        for words in looks:
            for name in DRAFT_COUNTERS:
                pool.slots[name] = words
            for progress in reader.read().values():
                assert min(progress.counters.values()) >= 0
        pool.close()
