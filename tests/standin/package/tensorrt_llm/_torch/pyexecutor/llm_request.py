"""A request as the executor and the drafter see it."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

from tensorrt_llm.sampling_params import SamplingParams


class LlmRequestState(Enum):
    CONTEXT_INIT = 1
    GENERATION_IN_PROGRESS = 2
    GENERATION_COMPLETE = 3


class LlmRequest:
    def __init__(
        self,
        request_id: int,
        client_id: int,
        prompt: list[int],
        parameters: SamplingParams,
        max_new_tokens: int,
    ) -> None:
        self.request_id = self.py_request_id = request_id
        self.py_client_id = client_id
        self.py_orig_prompt_len = len(prompt)
        self.py_max_new_tokens = max_new_tokens
        self.py_end_id = -1 if parameters.ignore_eos else parameters.end_id
        self.py_batch_idx: int | None = None
        self.py_seq_slot: int | None = None
        self.py_draft_tokens: list[int] = []
        self.py_last_draft_tokens: list[int] = []
        self.py_draft_pages_allocated = 0
        self.py_num_accepted_draft_tokens = 0
        self.py_decoding_iter = 0
        self.sampling_params = parameters
        self.sampling_config = SimpleNamespace(random_seed=parameters.seed)
        self.state = LlmRequestState.CONTEXT_INIT
        self.is_dummy = False
        self.is_attention_dp_dummy = False
        self.is_cuda_graph_dummy = False
        self._tokens = list(prompt)
        # The stand-in's own:
        self.session = -1
        self.prefilled = 0
        self.reported = 0
        self.is_cancelled = False
        self.finish_reason: str | None = None
        self.logprobs: list[dict[int, float]] = []

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self._tokens)

    def get_num_tokens(self, beam: int) -> int:
        assert beam == 0
        return len(self._tokens)

    def add_new_token(self, token: int, beam: int = 0) -> None:
        self._tokens.append(token)

    @property
    def output(self) -> list[int]:
        return self._tokens[self.py_orig_prompt_len :]
