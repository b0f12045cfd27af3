"""The `card` model: owns the pool, opens a session for every request, streams what is committed.

It never waits for an engine. `execute` admits a request and returns; one task (`follower`) answers
all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from card.cache import ANY, MAX_END_IDS, Pool, SlotRequest, digest_of
from card.engines.prefix_cache import BLOCK
from card.sampling import SamplingParameters
from card.serving.geometry import pool_geometry
from card.serving.log import RequestLog
from card.serving.metrics import Metrics
from card.serving.requests.admission import Admission
from card.serving.requests.allowed import Bounds
from card.serving.requests.derived import guide_of, output_budget, salt_of
from card.serving.requests.follower import TICK_S, Answer, Follower
from card.serving.requests.gathering import Gathering
from card.serving.requests.guide_check import GuideCheck
from card.serving.requests.listening import Listener
from card.serving.requests.parsing import parse
from card.serving.requests.refusal import Refusal, invalid
from card.serving.requests.sessions import Session, Sessions
from card.serving.requests.streams import Stream
from card.serving.requests.trace import Trace
from card.serving.requests.vocabulary import Vocabulary
from card.serving.requests.waiting import WaitingClient
from card.serving.requests.wire import GenerateRequest
from card.serving.supervision.load_failure import announced
from card.serving.supervision.notices import Notices
from card.serving.triton.attach import DEADLINE, KEY, Attacher, Losses, is_dead
from card.serving.triton.triton_request import TritonClient, checked_arrays, deadline_ns, request_id
from card.settings import load_settings
from card.text import Detokenizer

log = logging.getLogger(__name__)

_BEAT_S = 0.5
NO_END_ID = -1
"""As `end_id`: the text goes on until it has `max_tokens`."""


class CardModel:
    """Decoupled; one instance serves all requests at once on one event loop."""

    @announced
    def initialize(self, args: dict[str, str]) -> None:
        self._settings = settings = load_settings()
        log = RequestLog("card", settings.observability)
        self._vocabulary = Vocabulary.load(settings.target.path)
        self._bounds = Bounds(settings.limits, self._vocabulary.size)
        self._admission = Admission(settings)
        on_tensorrt = settings.engine_of(settings.target) == "tensorrt_llm"
        self._kv_block = 0 if on_tensorrt else BLOCK
        self._guides = GuideCheck(settings.target.path, settings.limits.guide_compile_s)
        self._pool = pool = Pool.create(
            settings.cache.directory, os.getppid(), pool_geometry(settings)
        )
        self._metrics = Metrics(pool, pb_utils.MetricFamily, log, settings.roles)
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
        # The stub notes a coroutine only after it began, and would keep one that ended before that.
        await asyncio.sleep(TICK_S)

    def finalize(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        for task in self._tasks:
            task.get_loop().call_soon_threadsafe(task.cancel)
        self._attacher.stop()
        self._metrics.stop()

    async def _admit(self, request: Any, follower: Follower) -> None:
        """Check a request, open its session, hand it to the follower; or refuse it."""
        arrival_ns = time.monotonic_ns()
        client = TritonClient(request)
        prompt: str | None = None
        try:
            self._notices.check_draining()
            deadline = deadline_ns(request)
            arrays = checked_arrays(request, GenerateRequest, self._bounds.limits)
            parsed = parse(GenerateRequest, arrays, self._bounds, required=("input_ids",))
            prompt = parsed.text_input
            slot_request = self._slot_request(parsed)
            if slot_request.guide is not None:
                await self._guides.check(slot_request.guide)
            stream = self._stream(parsed, arrival_ns)
            waiting = WaitingClient(client, self._pool, stream.sign if parsed.stream else None)
            session = await self._sessions.admit(slot_request, deadline, waiting.seek)
        except Refusal as refusal:
            self._refuse(request, client, refusal, prompt)
            return
        except Exception:
            log.exception("a request could not be taken")  # and its client must not wait for ever
            internal = Refusal("INTERNAL", "card could not take this request; see the server's log")
            self._refuse(request, client, internal, prompt)
            return
        stream.schedule()
        self._metrics.admitted(session, arrival_ns, request_id(request), prompt)
        trace = self._trace(session) if parsed.return_trace else None
        follower.follow(Answer(client, stream, session, deadline, trace))

    def _refuse(
        self, request: Any, client: TritonClient, refusal: Refusal, prompt: str | None
    ) -> None:
        client.fail(refusal)
        self._metrics.rejected(refusal, request_id(request), prompt)

    def _slot_request(self, request: GenerateRequest) -> SlotRequest:
        settings = self._settings
        if request.return_trace and not request.stream:
            raise invalid("return_trace", True, "false unless stream is true")
        budget = output_budget(request, len(request.input_ids), settings.limits)
        bad_words = self._vocabulary.bad_word_tokens(request.bad_words)
        most = settings.limits.bad_word_tokens
        if (length := sum(map(len, bad_words))) > most:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"bad_words are {length} tokens long; they must be at most {most} "
                "(limits.bad_word_tokens)",
            )
        guide = guide_of(request)
        # Where a guide is complete the text ends, whatever the request says of its end.
        endless = guide is not None and request.end_id == NO_END_ID
        parameters = SamplingParameters(
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            min_p=request.min_p,
            logit_bias=self._logit_bias(request),
            repetition_penalty=request.repetition_penalty,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            min_tokens=budget if endless else request.min_tokens,
            bad_words=bad_words,
            seed=secrets.randbits(64) if request.seed is None else request.seed,
            end_ids=self._end_ids(request, guided=guide is not None),
        )
        wanted = request.decoding or settings.speculation.decoding
        drafter = self._admission.drafter(request)
        pacing = self._admission.decoding(request, parameters, wanted, drafter)
        return SlotRequest(
            prompt=np.array(request.input_ids, np.int64),
            max_tokens=budget,
            pacing=pacing,
            drafter=drafter or ANY,
            growth=request.growth or ANY,
            acceptance=self._admission.acceptance(request),
            num_draft_tokens=settings.speculation.gamma,
            log_probabilities=request.return_log_probs,
            likeliest=self._likeliest(request),
            prompt_log_probabilities=request.return_prompt_log_probs,
            parameters=parameters,
            guide=guide,
            draft_key_digest=digest_of(request.draft_key) if request.draft_key else None,
            proposes=self._admission.proposes(request),
            reuses_kv=self._reuses_kv(request),
            salt=salt_of(request),
            trace=request.return_trace,
            prediction=self._prediction(request, budget),
        )

    def _prediction(self, request: GenerateRequest, budget: int) -> NDArray[np.int64]:
        """As much of it as the text has room for."""
        text = request.prediction
        ids = [] if text is None else self._vocabulary.predicted_tokens(text)
        return np.array(ids[:budget], np.int64)

    def _reuses_kv(self, request: GenerateRequest) -> bool:
        """Whether the text may begin behind another one, and others behind it."""
        is_alone = self._settings.cache.isolated and not request.cache_salt
        return not (request.skip_reading_prefix_cache or is_alone)

    def _end_ids(self, request: GenerateRequest, *, guided: bool) -> tuple[int, ...]:
        """What ends the text: the one id that the request names, none, or those of the model, and
        in any case its stop tokens and those of its stop words that are special tokens.

        A guided text ends with one of the model's. Raises `Refusal` for another.
        """
        ends, wanted = self._vocabulary.end_ids, request.end_id
        if guided and wanted not in (None, NO_END_ID, *ends):
            known = ", ".join(map(str, ends))
            raise invalid(
                "end_id", wanted, f"absent, -1 or the model's ({known}) where a text is guided"
            )
        if not guided and wanted is not None:
            ends = () if wanted == NO_END_ID else (wanted,)
        stops = self._vocabulary.special_ids(request.stop_words)
        ends = tuple(dict.fromkeys((*ends, *request.stop_token_ids, *stops)))
        if len(ends) > MAX_END_IDS:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"stop_token_ids and stop_words make {len(ends)} tokens that end the text, the "
                f"model's own included; they must be at most {MAX_END_IDS}",
                field="stop_token_ids",
            )
        return ends

    def _logit_bias(self, request: GenerateRequest) -> tuple[tuple[int, float], ...]:
        ids, values = request.logit_bias_ids, request.logit_bias_values
        if len(ids) != len(values):
            raise Refusal(
                "INVALID_ARGUMENT",
                f"logit_bias_values has {len(values)} elements and logit_bias_ids {len(ids)}; send "
                "one value for each id",
                field="logit_bias_values",
            )
        return tuple(zip(ids, values, strict=True))

    def _likeliest(self, request: GenerateRequest) -> int:
        wanted = request.top_log_probs
        if wanted and not (request.return_log_probs or request.return_prompt_log_probs):
            raise invalid(
                "top_log_probs",
                wanted,
                "0 unless return_log_probs or return_prompt_log_probs is true",
            )
        return wanted

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
        except OSError as error:  # who is too many waits for `card` to say so
            log.error("the notice of a full queue failed: %s", error)


def _ask(engine: str, key: str, deadline: int) -> None:
    """Send the attach request to an engine, blocking until it answers."""
    answer = pb_utils.InferenceRequest(
        model_name=engine,
        requested_output_names=[],
        inputs=[
            pb_utils.Tensor(KEY, np.array([key.encode()], np.object_)),
            pb_utils.Tensor(DEADLINE, np.array([deadline], np.int64)),
        ],
    ).exec()
    if answer.has_error():  # while Triton does not serve it yet; it is asked again
        pb_utils.Logger.log_info(f"{engine} did not attach: {answer.error().message()}")


async def _beat_for_ever(pool: Pool) -> None:
    """From the loop that answers everybody: if a response is never taken, it stands still."""
    while True:
        pool.beat("card")
        await asyncio.sleep(_BEAT_S)


def _die_with(task: asyncio.Task[None]) -> None:
    """Nobody would be answered without it; the supervisor starts the server anew."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("what answers all requests ended", exc_info=error)
        os._exit(1)
