"""vLLM's engine core in this process, and the requests in it.

vLLM's front end (text, streams of outputs) is left out: the loop drives the core step by step, so
that a commit lies between a step and the next query.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import tokens_input
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from card.cache import NO_SALT, SlotRequest
from card.engines.interface import EngineError, Text
from card.engines.vllm.arguments import engine_arguments, sampling_arguments
from card.settings import Settings
from card.speculation.control.fixed import UNMEASURED_ROWS


def candidates_of(settings: Settings) -> int:
    """Most candidates of a text in a pass."""
    rows = settings.speculation.rows
    return (UNMEASURED_ROWS if rows == "auto" else rows) - 1


class VllmEngine:
    """The core, and a number for each session that the loop opens. Of `card.engines.Engine` it has
    what concerns sessions; vLLM forwards rows by itself.

    Raises `EngineError` if vLLM refuses an argument or the model.
    """

    row_invariant = False
    alone_share = 1.0

    def __init__(self, settings: Settings, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.context = settings.limits.context_tokens
        self.most_rows = settings.serving.prefill_chunk
        self.row_costs_ms: dict[int, float] = {}
        target = settings.target
        arguments = engine_arguments(
            target.vllm.arguments,
            [field.name for field in dataclasses.fields(EngineArgs)],
            model=str(target.path),
            dtype=target.dtype,
            context=self.context,
            slots=settings.cache.slots,
            likeliest=settings.limits.top_log_probs,
            candidates=candidates_of(settings),
            on_processor=not target.vllm.devices,
        )
        try:
            engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (ValueError, TypeError, RuntimeError, OSError, NotImplementedError) as error:
            reason = " ".join(str(error).split())
            raise EngineError(f"{target.path}: vLLM cannot load it: {reason}") from error
        self._engine = engine  # its end would end the core
        self._inputs = engine.input_processor
        self._tasks = engine.get_supported_tasks()
        self._core = engine.engine_core.engine_core
        self._speculates = candidates_of(settings) > 0
        self._opened = 0
        self._ids: dict[int, str] = {}
        self._sessions: dict[str, int] = {}

    # --- sessions -----------------------------------------------------------------------------

    def open_session(self, text: Text = (), salt: bytes = b"") -> int:
        self._opened += 1
        return self._opened

    def remember(self, session: int, text: Text, salt: bytes = b"") -> None:
        """vLLM keeps blocks of KV by itself."""

    def length(self, session: int) -> int:
        return 0

    def close_session(self, session: int) -> None:
        request_id = self._ids.pop(session, None)
        if request_id is not None:
            del self._sessions[request_id]
            self._core.abort_requests([request_id])

    # --- requests -----------------------------------------------------------------------------

    def request(
        self,
        session: int,
        request: SlotRequest,
        prompt: Sequence[int],
        written: int,
        *,
        with_seed: bool,
    ) -> None:
        """Ask vLLM to continue `prompt`; `written` as of `sampling_arguments`. Raises `ValueError`
        saying what vLLM does not take."""
        parameters = SamplingParams(**sampling_arguments(request, written, with_seed=with_seed))
        if request.parameters.bad_words:  # vLLM makes tokens of text, and has no tokenizer here
            parameters._bad_words_token_ids = [list(word) for word in request.parameters.bad_words]
        salt = None
        if not request.reuses_kv:
            salt = f"session {session}"
        elif request.salt != NO_SALT:
            salt = request.salt.hex()
        made = self._inputs.process_inputs(
            str(session),
            tokens_input(list(prompt), cache_salt=salt),
            parameters,
            supported_tasks=self._tasks,
        )
        self._inputs.assign_request_id(made)
        self._core.add_request(*self._core.preprocess_add_request(made))
        self._ids[session] = made.request_id
        self._sessions[made.request_id] = session

    def has_request(self, session: int) -> bool:
        return session in self._ids

    def offer(self, candidates: Mapping[int, list[int]]) -> dict[int, int]:
        """Hand over the candidates of sessions for the next step; returns how many of each vLLM
        takes. A request that is not under way, because vLLM took its memory, takes none."""
        taken = dict.fromkeys(candidates, 0)
        requests = self._core.scheduler.requests
        ids = {
            request_id: tokens
            for session, tokens in candidates.items()
            if (request_id := self._ids[session]) in requests
            and requests[request_id].status is RequestStatus.RUNNING
        }
        if not (self._speculates and ids):
            return taken
        self._core.scheduler.update_draft_token_ids(DraftTokenIds(list(ids), list(ids.values())))
        for request_id in ids:
            taken[self._sessions[request_id]] = len(requests[request_id].spec_token_ids)
        return taken

    def step(self) -> dict[int, Any]:
        """One pass of vLLM; its `EngineCoreOutput` by session."""
        outputs, _ = self._core.step()
        found = {}
        for output in outputs[0].outputs if outputs else ():
            session = self._sessions.get(output.request_id)
            if session is not None:
                found[session] = output
                if output.finish_reason is not None:
                    del self._sessions[output.request_id], self._ids[session]
        return found
