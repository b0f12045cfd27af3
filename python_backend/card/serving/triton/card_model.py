"""The `card` model: owns the pool, opens a session for every request, streams committed tokens.

The model never waits for an engine. `execute` admits a request and returns; one task (`follower`)
answers all requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from card.cache import Pool
from card.constraints import Guide
from card.engines.interface import BLOCK
from card.serving.geometry import pool_geometry
from card.serving.log import RequestLog
from card.serving.metrics import Metrics
from card.serving.notices import Notices, announced
from card.serving.requests.follower import TICK_S, Answer, Follower, Listener
from card.serving.requests.guide_check import GuideCheck
from card.serving.requests.refusal import Refusal
from card.serving.requests.sessions import Session, Sessions, WaitingClient
from card.serving.requests.slot_request import SlotRequests
from card.serving.requests.streams import Gathering, Stream
from card.serving.requests.trace import Trace
from card.serving.requests.vocabulary import Vocabulary
from card.serving.requests.wire import PROMPT_IDS, Bounds, GenerateRequest, parse
from card.serving.triton.attach import DEADLINE, KEY, Attacher, Losses, is_dead
from card.serving.triton.triton_request import (
    TritonClient,
    came_through_bls,
    checked_arrays,
    deadline_ns,
    request_id,
)
from card.settings import load_settings
from card.text import Detokenizer

log = logging.getLogger(__name__)

_BEAT_S = 0.5


class CardModel:
    """Decoupled; one instance serves all requests at once on one event loop."""

    @announced
    def initialize(self, args: dict[str, str]) -> None:
        self._settings = settings = load_settings()
        log = RequestLog("card", settings.observability)
        self._vocabulary = Vocabulary.load(settings.target.path)
        self._bounds = Bounds(settings.limits, self._vocabulary.size)
        self._slot_requests = SlotRequests(settings, self._vocabulary)
        self._kv_block = 0 if settings.guest else BLOCK
        self._guides = GuideCheck(settings.target.path, settings.limits.guide_compile_s)
        self._pool = pool = Pool.create(
            settings.cache.directory, os.getppid(), pool_geometry(settings)
        )
        self._metrics = Metrics(
            pool, pb_utils.MetricFamily, log, settings.limits.context_tokens, settings.roles
        )
        self._sessions = Sessions(pool, settings.limits.queue_timeout_s)
        self._notices = Notices.of_this_service()
        self._notices.queue_full.withdraw()
        self._follower: Follower | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: Listener | None = None
        self._attacher = Attacher(
            pool,
            pool.new_key(),
            settings.serving.engine_timeout_s,
            ask=_ask,
            report=self._metrics.engine_up,
            engines=settings.roles,
        )
        self._attacher.start()

    async def execute(self, requests: list[Any]) -> None:
        if self._follower is None:
            self._follower = self._start_follower()
        follower = self._follower
        await asyncio.gather(*(self._admit(request, follower) for request in requests))
        # The stub registers a coroutine only after it began, and would keep one that ends at once.
        await asyncio.sleep(TICK_S)

    def finalize(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        for task in self._tasks:
            task.get_loop().call_soon_threadsafe(task.cancel)
        self._attacher.stop()
        self._metrics.stop()

    async def _admit(self, request: Any, follower: Follower) -> None:
        """Check a request, open its session and pass it to the follower; or refuse it."""
        arrival_ns = time.monotonic_ns()
        client = TritonClient(request)
        prompt: str | None = None
        try:
            self._notices.check_draining()
            deadline = deadline_ns(request)
            client.through_bls = came_through_bls(request, self._pool.token)
            arrays = checked_arrays(request, GenerateRequest, self._bounds.limits)
            parsed = parse(GenerateRequest, arrays, self._bounds, required=PROMPT_IDS)
            prompt = parsed.text_input
            slot_request = await self._slot_requests.checked(parsed)
            stream = self._stream(parsed, arrival_ns)
            waiting = WaitingClient(client, self._pool, stream.sign if parsed.stream else None)
            if slot_request.guide is not None:
                await self._check_guide(slot_request.guide, slot_request.salt, deadline, waiting)
            session = await self._sessions.admit(slot_request, deadline, waiting.seek)
        except Refusal as refusal:
            self._refuse(request, client, refusal, prompt)
            return
        except Exception:
            log.exception("a request could not be taken")  # its client still needs an answer
            internal = Refusal("INTERNAL", "card could not take this request; see the server's log")
            self._refuse(request, client, internal, prompt)
            return
        stream.schedule()
        self._metrics.admitted(session, arrival_ns, request_id(request), prompt)
        trace = self._trace(session) if parsed.return_trace else None
        follower.follow(Answer(client, stream, session, deadline, trace))

    async def _check_guide(
        self, guide: Guide, salt: bytes, deadline_ns: int | None, waiting: WaitingClient
    ) -> None:
        """Raises `Refusal`."""
        place = self._sessions.borrow_place()
        try:
            await self._guides.check(guide, salt, deadline_ns, lambda: waiting.seek(place))
        finally:
            self._sessions.give_back(place)

    def _refuse(
        self, request: Any, client: TritonClient, refusal: Refusal, prompt: str | None
    ) -> None:
        client.fail(refusal)
        self._metrics.rejected(refusal, request_id(request), prompt)

    def _stream(self, request: GenerateRequest, arrival_ns: int) -> Stream:
        tokenizer = self._vocabulary.tokenizer
        prompt = request.text_input
        if prompt is None:
            prompt = tokenizer.decode(request.input_ids, skip_special_tokens=True)
        return Stream(
            request,
            Detokenizer(tokenizer, request.input_ids, request.stop_words),
            prompt,
            arrival_ns=arrival_ns,
            kv_block=self._kv_block,
        )

    def _trace(self, session: Session) -> Trace:
        request = session.request
        return Trace(
            session.slot,
            session.session_id,
            self._vocabulary.size,
            len(request.prompt),
            time.monotonic_ns(),
            remote=request.is_remote,
        )

    def _start_follower(self) -> Follower:
        follower = Follower(
            self._sessions,
            self._metrics,
            lambda: is_dead(self._pool, "target"),
            Losses(self._pool, "target").count,
            self._settings.serving.load_timeout_s,
            Gathering.of(self._settings.serving),
            self._tell_full,
        )
        loop = asyncio.get_running_loop()
        self._listener = Listener(self._pool.commit_bell, loop, follower.wake)
        self._tasks = [
            loop.create_task(follower.run()),
            loop.create_task(_beat_for_ever(self._pool)),
        ]
        for task in self._tasks:
            task.add_done_callback(_die_with)
        return follower

    def _tell_full(self, full: bool) -> None:
        notice = self._notices.queue_full
        try:
            notice.post() if full else notice.withdraw()
        except OSError as error:  # `card` itself then refuses requests that are too many
            log.error("the notice of a full queue failed: %s", error)


def _ask(engine: str, key: str, deadline: int) -> None:
    """Send the attach request to an engine and wait for its response."""
    answer = pb_utils.InferenceRequest(
        model_name=engine,
        requested_output_names=[],
        inputs=[
            pb_utils.Tensor(KEY, np.array([key.encode()], np.object_)),
            pb_utils.Tensor(DEADLINE, np.array([deadline], np.int64)),
        ],
    ).exec()
    if answer.has_error():  # Triton may not serve the engine yet; `Attacher` asks again
        pb_utils.Logger.log_info(f"{engine} did not attach: {answer.error().message()}")


async def _beat_for_ever(pool: Pool) -> None:
    """Beat from the event loop that answers all requests, so that a blocked loop is noticed."""
    while True:
        pool.beat("card")
        await asyncio.sleep(_BEAT_S)


def _die_with(task: asyncio.Task[None]) -> None:
    """End the process if the task failed, because it answers all requests. The supervisor then
    restarts the server."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the task that answers all requests failed", exc_info=error)
        os._exit(1)
