"""A follower on a stage: its clients, its ledger, a pool of two slots, a target played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from serving_double import HandPlayedTarget, slot_request
from tokenizers import Tokenizer, decoders, models

from card.cache import Pool, SlotState
from card.serving.requests.delta import Delta
from card.serving.requests.follower import LONGEST_PAUSE_S, Answer, Follower
from card.serving.requests.refusal import Refusal, UndeliverableError
from card.serving.requests.sessions import Session, Sessions
from card.serving.requests.streams import Gathering, Stream
from card.serving.requests.trace import Trace
from card.serving.requests.wire import GenerateRequest
from card.text import Detokenizer

LETTERS = Tokenizer(models.WordLevel({chr(97 + i): i for i in range(26)}, unk_token="a"))
LETTERS.decoder = decoders.Fuse()
LIMIT_S = 10.0


class Client:
    """Remembers what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Delta] = []
        self.errors: list[str] = []
        self.ended = 0
        self.gone = False
        self.unreachable = False

    @property
    def texts(self) -> list[str]:
        return [delta.text for delta in self.sent]

    def send(self, delta: Delta, *, last: bool) -> None:
        if self.unreachable:
            raise UndeliverableError("no room")
        self.sent.append(delta)
        self.ended += last

    def fail(self, refusal: Refusal) -> None:
        self.errors.append(str(refusal))
        self.ended += 1

    def is_gone(self) -> bool:
        return self.gone


class Ledger:
    """Remembers what was counted."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.commits: list[tuple[int, int]] = []
        self.ends = 0
        self.in_use = 0

    def answered(self, session: Session, outcome: str) -> None:
        self.outcomes.append(outcome)

    def committed(self, session: Session, tokens: int, now_ns: int) -> None:
        self.commits.append((tokens, now_ns))

    def ended(self) -> None:
        self.ends += 1

    def occupancy(self, slots: int, queue: int) -> None:
        self.in_use = slots


class Scene:
    """A follower over a pool of two slots, with a target played by hand."""

    def __init__(
        self,
        pool: Pool,
        flush_ns: int = 0,
        deltas_per_s: float = 1e9,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        self.pool = pool
        self.target = HandPlayedTarget(pool)
        self.target_is_dead = False
        self.targets_lost = 0
        self.sessions = Sessions(pool, 30.0)
        self.ledger = Ledger()
        self.told: list[bool] = []
        self.follower = Follower(
            self.sessions,
            self.ledger,
            lambda: self.target_is_dead,
            lambda: self.targets_lost,
            LIMIT_S,
            Gathering(flush_ns, deltas_per_s),
            self.told.append,
            longest_pause_s,
        )

    async def open(
        self,
        *,
        end_ids: tuple[int, ...] = (),
        deadline_ns: int | None = None,
        max_tokens: int = 8,
        streams: bool = True,
        **request: object,
    ) -> tuple[Client, int]:
        """Start answering a streamed request; the client, and the index of its slot."""
        client = Client()
        asked = GenerateRequest(input_ids=(0, 1, 2), stream=streams, **request)  # type: ignore[arg-type]
        stream = Stream(asked, Detokenizer(LETTERS, (0, 1, 2), asked.stop_words), "", arrival_ns=0)
        session = await self.sessions.admit(
            slot_request(max_tokens, end_ids), None, lambda _: False
        )
        trace = Trace(session.slot, session.session_id, 26, 3, 0) if asked.return_trace else None
        self.follower.follow(Answer(client, stream, session, deadline_ns, trace))
        return client, session.slot.index

    def state(self, index: int) -> SlotState:
        return SlotState(int(self.pool.states[index]))


async def comes_true(holds: Callable[[], bool]) -> None:
    """Let the event loop go on until it holds."""

    async def turns() -> None:
        while not holds():
            await asyncio.sleep(0)

    await asyncio.wait_for(turns(), LIMIT_S)
