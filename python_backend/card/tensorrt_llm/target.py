"""The target's side in the Triton process: sessions become requests, results become commits.

A response of the engine brings the tokens of one pass. The hook in the engine's worker only asks
the cache for candidates; it leaves them in a table, where this process finds those of the pass.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from card.cache import Candidates, Finish, Pool, SlotRequest, SlotState, SlotWatch, TargetSlot
from card.decoding.guest import commit, follow
from card.decoding.session import Query, TargetSession
from card.engines.tensorrt_llm.requests import sampling_arguments
from card.engines.tensorrt_llm.runtime import Runtime, SessionTasks
from card.settings import Settings
from card.tensorrt_llm.bindings import Bindings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Served:
    """A session of a slot.

    output  tensorrt_llm.RequestOutput, once requested
    """

    slot: TargetSlot
    session_id: int
    request: SlotRequest
    output: Any = None

    def abort(self) -> None:
        if self.output is not None:
            self.output.abort()


class TensorRTTargetLoop:
    """Follows the pool's slots; call `step` again and again from one thread.

    Raises what the engine raised: the process is of no use then.
    """

    def __init__(self, runtime: Runtime, pool: Pool, settings: Settings) -> None:
        self._runtime = runtime
        self._pool = pool
        self._slots = [pool.target_slot(index) for index in range(pool.geometry.slots)]
        self._watch = SlotWatch(pool.slots)
        self._bindings = Bindings.create(pool)
        self._sessions: dict[int, _Served] = {}
        self._tasks = SessionTasks(runtime, settings.target.tensorrt_llm.stall_timeout_s)
        # Shows that the engine gives tokens; the hook attaches before the first session comes.
        self._tasks.probe()

    @property
    def is_idle(self) -> bool:
        """Always false: each step looks at what the runtime does."""
        return False

    def step(self) -> bool:
        """Request texts of slots that were opened, and end those of slots that were closed. Returns
        whether a slot changed."""
        self._tasks.check()
        if not self._watch.look():
            return False
        self._runtime.call(self._look)
        return True

    def abandon(self) -> None:
        """The pool is another: end every request."""

        def abort() -> None:
            for served in self._sessions.values():
                served.abort()

        self._runtime.call(abort)

    # --- on the event loop --------------------------------------------------------------------

    def _look(self) -> None:
        self._release_closed()
        self._adopt_opened()

    def _release_closed(self) -> None:
        for slot in self._slots:
            session_id = slot.session_id
            if slot.state is not SlotState.CLOSED:
                continue
            served = self._sessions.get(slot.index)
            if served is None:
                slot.release(session_id)
            else:  # released when the engine is done with it: until then the hook reads the slot
                served.abort()

    def _adopt_opened(self) -> None:
        for slot, session_id, request in self._watch.opened(self._slots, self._sessions):
            if slot.finish(session_id) is Finish.RUNNING:
                served = self._sessions[slot.index] = _Served(slot, session_id, request)
                self._tasks.start(self._serve(served))

    async def _serve(self, served: _Served) -> None:
        slot = served.slot
        try:
            await self._decode(served)
        except (self._runtime.package.llmapi.RequestError, ValueError) as error:
            log.error("session of slot %d failed: %s", slot.index, error)
            slot.fail()
        self._bindings.release(slot.index)
        del self._sessions[slot.index]
        if not slot.is_open(served.session_id):
            slot.release(served.session_id)

    async def _decode(self, served: _Served) -> None:
        """Generate behind what is committed already, until the end or until the slot is closed."""
        slot, session_id, request = served.slot, served.session_id, served.request
        first = slot.adopt(session_id)
        session = follow(slot, session_id, request, 0)
        arguments = sampling_arguments(request, request.max_tokens - first)
        served.output = output = self._runtime.generate(list(session.history.tokens), arguments)
        self._bindings.bind(slot.index, output.request_id, session_id)
        if not slot.is_open(session_id):  # closed while it was requested
            output.abort()
        async for _ in output:
            self._tasks.progress()
            if slot.is_open(session_id):
                self._commit(session, output, session.history.generated - first)

    def _commit(self, session: TargetSession, output: Any, known: int) -> None:
        """Commit what a pass gave behind the first `known` tokens of the request."""
        slot, completion, finish = session.slot, output.outputs[0], Finish.RUNNING
        if output.finished:
            reason, end_ids = completion.finish_reason, session.parameters.end_ids
            if reason not in ("stop", "length"):
                log.error("session of slot %d ended as %r", slot.index, reason)
                slot.fail()
                return
            finish = Finish.END_ID if reason == "stop" else Finish.LENGTH
            if reason == "stop" and not set(completion.token_ids[-1:]) & set(end_ids):
                completion.token_ids.append(end_ids[0])  # the runtime cuts it off
        tokens = list(completion.token_ids[known:])
        if not tokens and finish is Finish.RUNNING:
            return
        offered = self._bindings.offered(slot.index, session.session_id, len(session.history))
        chain = Candidates.chain(offered, [1.0] * len(offered))
        slot.count_time(runs=True)
        logged = _log_probabilities(completion, known)
        commit(session, tokens, Query(chain, len(offered), time.monotonic_ns()), finish, logged)


class TensorRTTarget:
    """A loaded target: one loop for each pool, the latest alone at work."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        self._runtime = runtime
        self._settings = settings
        self._loop: TensorRTTargetLoop | None = None

    def make_loop(self, pool: Pool) -> TensorRTTargetLoop:
        if self._loop is not None:
            self._loop.abandon()
        self._loop = TensorRTTargetLoop(self._runtime, pool, self._settings)
        return self._loop

    def close(self) -> None:
        """End its requests, its event loop and its workers."""
        self._runtime.shutdown()


def _log_probabilities(completion: Any, known: int) -> list[float]:
    """Of the tokens behind the first `known`; nothing if they were not asked for.

    Only greedy requests may ask for them (`TensorRTRules`), so the token is the likeliest one. The
    runtime may have listed another id that is as likely.
    """
    found = []
    entries = (completion.logprobs or [])[known:]
    for token, entry in zip(completion.token_ids[known:], entries, strict=False):
        listed = entry[token] if token in entry else max(entry.values(), key=_likelihood)
        found.append(_likelihood(listed))
    missing = len(completion.token_ids) - known - len(found)
    return [*found, *[0.0] * missing] if found else []


def _likelihood(listed: Any) -> float:
    found: float = listed.logprob
    return found
