from __future__ import annotations

from dataclasses import dataclass, field

from tensorrt_llm._torch.pyexecutor.llm_request import LlmRequest


@dataclass
class ScheduledRequests:
    """Prompts that are being prefilled, and requests that get a token in this pass."""

    context_requests: list[LlmRequest] = field(default_factory=list)
    generation_requests: list[LlmRequest] = field(default_factory=list)
