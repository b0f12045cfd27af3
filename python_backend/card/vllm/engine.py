"""vLLM's engine core in this process, and the requests in it.

vLLM's front end (text, streams of outputs) is left out: the loop drives the core step by step, so
that a commit lies between a step and the next query.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.inputs import tokens_input
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import RequestStatus

from card.cache import SlotRequest
from card.engines.guest.drafts import salt_of
from card.engines.interface import EngineError, Text
from card.engines.vllm.arguments import engine_arguments, sampling_arguments
from card.engines.vllm.guides import structured_output
from card.sampling import SamplingParameters
from card.settings import Role, Settings
from card.settings.models import DraftSettings, TargetSettings
from card.speculation.control import CONTROLLERS
from card.speculation.control.fixed import UNMEASURED_ROWS

COSTED_ROWS = (1, 2, 4, 6, 8, 12, 16)
"""Where the controller chooses the number of rows, load measures the cost of these numbers."""
_MEASURED_STEPS = 5
_PROMPT_TOKENS = 32


def candidates_of(settings: Settings) -> int:
    """Most candidates of a text in a pass."""
    rows = settings.speculation.rows
    if rows != "auto":
        return rows - 1
    return (COSTED_ROWS[-1] if chooses_rows(settings) else UNMEASURED_ROWS) - 1


def chooses_rows(settings: Settings) -> bool:
    """Whether the controller chooses how many candidates a pass verifies."""
    return CONTROLLERS[settings.control].chooses_rows


@contextmanager
def _refusal(what: str) -> Iterator[None]:
    """Raise `EngineError` for whatever vLLM raises."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split()) or repr(error)
        raise EngineError(f"{what}: {said}") from error


def loaded_engine(
    role: Role,
    model: TargetSettings | DraftSettings,
    *,
    context: int,
    texts: int,
    likeliest: int,
    candidates: int = 0,
) -> LLMEngine:
    """vLLM with the model of a role; numbers as of `engine_arguments`. Its end ends its core.

    Raises `EngineError` if vLLM refuses an argument or the model.
    """
    arguments = engine_arguments(
        role,
        model.vllm.arguments,
        [field.name for field in dataclasses.fields(EngineArgs)],
        model=str(model.path),
        dtype=model.dtype,
        context=context,
        texts=texts,
        likeliest=likeliest,
        candidates=candidates,
        on_processor=not model.vllm.devices,
    )
    with _refusal(f"{model.path}: vLLM cannot load it"):
        return LLMEngine.from_engine_args(EngineArgs(**arguments))


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
        path = settings.target.path
        self._engine = engine = loaded_engine(
            "target",
            settings.target,
            context=self.context,
            texts=settings.cache.slots,
            likeliest=settings.limits.top_log_probs,
            candidates=candidates_of(settings),
        )
        self._inputs = engine.input_processor
        self._tasks = engine.get_supported_tasks()
        self._core = engine.engine_core.engine_core
        self._speculates = candidates_of(settings) > 0
        self._opened = 0
        self._ids: dict[int, str] = {}
        self._sessions: dict[str, int] = {}
        measures, most = chooses_rows(settings), candidates_of(settings)
        without = " with candidates; set speculation.rows to 1" if self._speculates else ""
        with _refusal(f"{path}: vLLM cannot run it{without}"):
            self._measure(0)
        self.row_costs_ms: dict[int, float] = {}
        if self._speculates:
            with _refusal(f"{path}: vLLM verifies no candidates of it; set speculation.rows to 1"):
                costs = self._measure(most if measures else 1)
            self.row_costs_ms = costs if measures else {}

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
        try:
            arguments = sampling_arguments(request, written, with_seed=with_seed)
            if request.guide is not None:
                guided = StructuredOutputsParams(**structured_output(request.guide))
                arguments["structured_outputs"] = guided
                # vLLM's guides end with this id, whatever the request says.
                arguments["stop_token_ids"].append(self._inputs.renderer.get_eos_token_id())
            parameters = SamplingParams(**arguments)
            if bad_words := request.parameters.bad_words:  # vLLM makes tokens of text, elsewhere
                parameters._bad_words_token_ids = [list(word) for word in bad_words]
            made = self._inputs.process_inputs(
                str(session),
                tokens_input(list(prompt), cache_salt=salt_of(request, session)),
                parameters,
                supported_tasks=self._tasks,
            )
        except VLLMValidationError as error:
            raise ValueError(str(error)) from error
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

    # --- costs --------------------------------------------------------------------------------

    def _measure(self, most: int) -> dict[int, float]:
        """Milliseconds of a step with one text, by its rows; nothing for more rows than the context
        has room for."""
        prompt = list(range(max(1, min(_PROMPT_TOKENS, self.context // 4))))
        endless = SlotRequest(
            np.array(prompt), self.context - len(prompt), "", SamplingParameters()
        )
        session = self.open_session()
        self.request(session, endless, prompt, 0, with_seed=False)
        self.step()
        draw = random.Random(0)
        costs: dict[int, float] = {}
        for rows in COSTED_ROWS:
            if rows > most + 1:
                break
            taken_ms = []
            for _ in range(1 + _MEASURED_STEPS):
                if not self.has_request(session):  # the text is at its end
                    return costs
                # Ids at random: few are accepted, so that the text stays short.
                ids = [draw.randrange(self.vocabulary) for _ in range(rows - 1)]
                began = time.perf_counter()
                self.offer({session: ids})
                self.step()
                taken_ms.append(1000 * (time.perf_counter() - began))
            costs[rows] = statistics.median(taken_ms[1:])
        self.close_session(session)
        return costs
