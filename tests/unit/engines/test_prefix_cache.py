"""What is kept of texts is found by texts that begin alike; the least recently used goes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from card.engines.interface import BLOCK
from card.engines.sessions import PrefixCache

SALT = b"one"


def text_of(blocks: str, more: int = 0) -> list[int]:
    """A text whose blocks are named by letters, and so many tokens behind them."""
    return [ord(letter) for letter in blocks for _ in range(BLOCK)] + [0] * more


texts = st.text("ab", max_size=5)


@given(
    room=st.integers(0, 6),
    steps=st.lists(st.tuples(st.sampled_from([b"one", b"two"]), texts, st.booleans()), max_size=40),
)
def test_every_block_that_is_found_holds_what_its_text_says(
    room: int, steps: list[tuple[bytes, str, bool]]
) -> None:
    """Against a model that fills numbers as an engine does, and counts uses of every beginning."""
    cache = PrefixCache(room)
    held: dict[int, tuple[bytes, str]] = {}
    used: dict[tuple[bytes, str], int] = {}
    for now, (salt, blocks, is_added) in enumerate(steps):
        if is_added:
            for place, number in cache.add(text_of(blocks), salt):
                held[number] = (salt, blocks[: place + 1])
        found = cache.find(text_of(blocks), salt)
        assert [held[number] for number in found] == [
            (salt, blocks[: place + 1]) for place in range(len(found))
        ]
        assert len(held) <= room
        assert not is_added or len(found) == min(room, len(blocks))
        for place in range(len(found)):
            used[salt, blocks[: place + 1]] = now
        # Everything that is kept was used later than all that is not, or together with it.
        gone = [now for beginning, now in used.items() if beginning not in held.values()]
        stay = [used[beginning] for beginning in held.values()]
        assert max(gone, default=-1) <= min(stay, default=len(steps))
