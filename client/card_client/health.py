"""Is the server live, is it ready, and which state is each of its models in?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

# Asked one by one where the server keeps its repository index to itself.
CARD_MODELS = (
    *("ensemble", "ensemble_unary", "tensorrt_llm", "llmapi"),
    *("preprocessing", "card", "draft", "target", "postprocessing"),
)
NEEDED = frozenset({"preprocessing", "card", "target", "postprocessing"})
"""What a text takes. Without its draft a server answers, and Triton does not call it ready."""


@dataclass(frozen=True)
class ModelState:
    """One model: `state` is Triton's word (READY, UNAVAILABLE, LOADING, ...)."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True)
class Health:
    """`ready` means: a request to the model would be taken now."""

    live: bool
    ready: bool
    models: tuple[ModelState, ...]


async def probe(
    triton: InferenceServerClient, model: str, headers: dict[str, str], timeout_s: float | None
) -> Health:
    """Asks the server about itself and its models; `timeout_s` bounds each question.

    Raises tritonclient's `InferenceServerException` when the server cannot be asked.
    """
    terms = {"headers": headers, "client_timeout": timeout_s}
    live = await triton.is_server_live(**terms)
    ready = await triton.is_server_ready(**terms)
    served = await triton.is_model_ready(model, **terms)
    models = await _models(triton, model, terms)
    answers = ready or {it.name for it in models if it.state == "READY"} >= NEEDED
    return Health(live=live, ready=live and served and answers, models=models)


async def _models(
    triton: InferenceServerClient, model: str, terms: dict[str, Any]
) -> tuple[ModelState, ...]:
    try:
        index = await triton.get_model_repository_index(**terms)
    except InferenceServerException as error:
        if not _index_is_private(error):
            raise
        names = CARD_MODELS if model in CARD_MODELS else (model,)
        return tuple([await _state(triton, name, terms) for name in names])
    return tuple(ModelState(m.name, m.version, m.state, m.reason) for m in index.models)


async def _state(triton: InferenceServerClient, name: str, terms: dict[str, Any]) -> ModelState:
    ready = await triton.is_model_ready(name, **terms)
    return ModelState(name, "", "READY" if ready else "UNAVAILABLE", "")


def _index_is_private(error: InferenceServerException) -> bool:
    refused = ("StatusCode.PERMISSION_DENIED", "StatusCode.UNIMPLEMENTED")
    # Triton answers a call to a restricted protocol with UNAVAILABLE and these words.
    return error.status() in refused or "protocol is restricted" in (error.message() or "")
