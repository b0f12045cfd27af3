"""The target's side in the Triton process: sessions become requests, results become commits.

While a request runs, the hook in the engine's worker publishes what was accepted, a pass earlier
than it would arrive here; what the last pass gave is published here, when the engine is done with
the request and no hook sees it any more. So a session has one writer at a time. Requests that the
hook does not follow (it is attached to no pool yet) are published here altogether.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from card.cache import Finish, Pool, SlotRequest, SlotState, SlotWatch, TargetSlot
from card.decoding.guest import follow
from card.engines.tensorrt_llm.requests import sampling_arguments
from card.engines.tensorrt_llm.runtime import Runtime, SessionTasks
from card.settings import Settings
from card.tensorrt_llm.bindings import Bindings
from card.tensorrt_llm.lookup import chain_of, is_published_by_hook, publish

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Session:
    slot: TargetSlot
    session_id: int
    request: SlotRequest
    output: Any = None  # tensorrt_llm.RequestOutput, once requested

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
        self._sessions: dict[int, _Session] = {}
        self._tasks = SessionTasks(runtime, settings.target.tensorrt_llm.stall_timeout_s)
        # Makes the hook run, so that it attaches before the first session comes.
        self._tasks.probe()

    @property
    def is_idle(self) -> bool:
        """Never: what the runtime does is looked after at every step."""
        return False

    def step(self) -> bool:
        """Take up what was opened and let go of what was closed; whether there was anything."""
        self._tasks.check()
        if not self._watch.look():
            return False
        self._runtime.call(self._look)
        return True

    def abandon(self) -> None:
        """The pool is another: end every request without a word."""

        def abort() -> None:
            for session in self._sessions.values():
                session.abort()

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
            session = self._sessions.get(slot.index)
            if session is None:
                slot.release(session_id)
            else:  # released when the engine is done with it: until then the hook may write
                session.abort()

    def _adopt_opened(self) -> None:
        for slot, session_id, request in self._watch.opened(self._slots, self._sessions):
            if slot.finish(session_id) is Finish.RUNNING:
                session = self._sessions[slot.index] = _Session(slot, session_id, request)
                self._tasks.start(self._serve(session))

    async def _serve(self, session: _Session) -> None:
        slot = session.slot
        try:
            await self._decode(session)
        except (self._runtime.package.llmapi.RequestError, ValueError) as error:
            log.error("session of slot %d failed: %s", slot.index, error)
            slot.fail()
        self._bindings.release(slot.index)
        del self._sessions[slot.index]
        if not slot.is_open(session.session_id):
            slot.release(session.session_id)

    async def _decode(self, session: _Session) -> None:
        """Generate behind what is committed already, until the end or until the slot is closed."""
        slot, session_id, request = session.slot, session.session_id, session.request
        first = slot.adopt(session_id)
        followed = self._bindings.followed
        prompt = [*request.prompt.tolist(), *slot.output(0, first).tolist()]
        output = self._runtime.generate(
            prompt, sampling_arguments(request, request.max_tokens - first)
        )
        session.output = output
        if followed:
            self._bindings.bind(slot.index, output.request_id, session_id)
        elsewhere = followed and is_published_by_hook(request)
        if not slot.is_open(session_id):  # closed while it was requested
            output.abort()
        async for _ in output:
            self._tasks.progress()
            if not elsewhere and not output.finished:
                self._commit(session, first, (), Finish.RUNNING)
        if slot.is_open(session_id):
            self._finish(session, first)

    def _finish(self, session: _Session, first: int) -> None:
        """Publish what the last pass gave."""
        slot, request = session.slot, session.request
        completion = session.output.outputs[0]
        reason = completion.finish_reason
        if reason not in ("stop", "length"):
            log.error("session of slot %d ended as %r", slot.index, reason)
            slot.fail()
            return
        end_ids = request.parameters.end_ids
        if reason == "stop" and not set(completion.token_ids[-1:]) & set(end_ids):
            completion.token_ids.append(end_ids[0])  # cut off by the runtime, expected by `card`
        length = len(request.prompt) + slot.committed(session.session_id)
        offered = self._bindings.offered(slot.index, session.session_id, length)
        finish = Finish.END_ID if reason == "stop" else Finish.LENGTH
        self._commit(session, first, offered, finish)

    def _commit(
        self, session: _Session, first: int, offered: Sequence[int], finish: Finish
    ) -> None:
        """Publish what is not yet; `first` tokens were committed before the request."""
        completion, slot = session.output.outputs[0], session.slot
        known = slot.committed(session.session_id) - first
        tokens = completion.token_ids[known:]
        if tokens or finish is not Finish.RUNNING:
            followed = follow(slot, session.session_id, session.request, 0)
            logged = _log_probabilities(completion, known)
            publish(followed, tokens, chain_of(offered), finish, logged)


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

    Only greedy requests may ask for them (`support.obstacles`), so the token is the likeliest one;
    of two equally likely ids the runtime may have listed the other.
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
