"""A client whose request waits for a slot: is it still there?

`card` sees a client leave that called it directly. Through an ensemble it never does: Triton hands
a client's departure to the next step alone, when that step begins. So a request that streams is
sent an empty delta now and then while it waits; `postprocessing` takes it, sees whether anybody is
there to read it, and says so in the pool as it does for every other delta.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from card.cache import Pool
from card.serving.requests.delta import SIGN_NS, Delta
from card.serving.requests.follower import Client


class WaitingClient:
    """Asked again and again while its request is in the queue.

    No session will ever have its session id, so that nobody who waited at its place before is
    mistaken for it.

    sign  makes an empty delta of a place and a session id; None: the request does not stream
    """

    def __init__(
        self,
        client: Client,
        pool: Pool,
        sign: Callable[[int, int], Delta] | None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._client = client
        self._pool = pool
        self._sign = sign
        self._clock_ns = clock_ns
        self._session_id: int | None = None
        self._signed_ns = clock_ns()

    def seek(self, place: int) -> bool:
        """Send a sign of life if it is time for one; whether nobody waits at this place any more,
        as far as can be known."""
        if self._client.is_gone():
            return True
        if self._sign is None:
            return False  # a second response would be one too many
        if self._pool.abandoned[place] == self._session_id:
            return True
        if self._clock_ns() - self._signed_ns >= SIGN_NS:
            if self._session_id is None:
                self._session_id = self._pool.new_session_id()
            self._client.send(self._sign(place, self._session_id), last=False)
            self._signed_ns = self._clock_ns()
        return False
