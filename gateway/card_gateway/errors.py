"""Every failure in OpenAI's shape: a status and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from card_client import CardError

_STATUS = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 503,  # Triton does not know the model that this gateway asks
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""HTTP statuses of gRPC's codes; any other is 500."""

_FIELDS = {
    "text_input": None,
    "input_ids": "prompt",
    "stop_words": "stop",
    "end_id": "ignore_eos",
    "logit_bias_ids": "logit_bias",
    "logit_bias_values": "logit_bias",
    "top_log_probs": "logprobs",
    "return_log_probs": "logprobs",
    "return_prompt_log_probs": "echo",
}
"""OpenAI's names of Triton's inputs, where they differ; a prompt may also be a chat."""

CLIENT_CLOSED_REQUEST = 499
"""The status that nginx uses; the client does not see it."""

RETRY_S = 1
"""When to ask again after a server that was full or away."""

_NAMED_FIELD = re.compile(r"([a-z_]+) (?:is|has|cannot) ")
_GUIDE = "guided_decoding_guide"
_PROMPT_TOO_LONG = re.compile(r"\(limits\.prompt_(?:tokens|bytes)\)")


class ApiError(HTTPException):
    """A request that gets an error instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        headers = dict(headers or {})
        if status in (429, 503):
            headers["Retry-After"] = str(RETRY_S)
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        super().__init__(status, message, headers or None)
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON that carries it."""
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        if self.status_code == 429:
            kind = "rate_limit_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, self.headers)


def refused(param: str, message: str, code: str | None = None) -> ApiError:
    """A field of the request is wrong."""
    return ApiError(400, message, param=param, code=code)


def from_triton(error: CardError, guided_by: str | None = None) -> ApiError:
    """The error of Triton, or of the way to it. `guided_by` is the field that guides the text."""
    status = _STATUS.get(error.code, 500)
    param = None
    if status == 400 and (named := _NAMED_FIELD.match(error.message)):
        param = _FIELDS.get(named[1], named[1])
    message = error.message
    if param == _GUIDE and guided_by is not None:
        param, message = guided_by, message.replace(_GUIDE, guided_by, 1)
    code = error.code.lower()
    if _PROMPT_TOO_LONG.search(message):  # OpenAI's: frameworks then shorten what they send
        code = "context_length_exceeded"
    return ApiError(status, message, param=param, code=code)


def from_validation(error: ValidationError) -> ApiError:
    """The error of a body. Of several problems it names the one that lies deepest."""
    problem = max(
        error.errors(include_url=False),
        key=lambda one: (len(one["loc"]), one["type"] == "too_long"),
    )
    if not problem["loc"]:
        return ApiError(400, _allowed(problem))
    *way, last = problem["loc"]
    # An unknown field may have any name.
    unknown = problem["type"] == "extra_forbidden"
    path = [*filter(_names_a_field, way), *([last] if unknown or _names_a_field(last) else [])]
    param = ".".join(map(str, path))
    if problem["type"] == "missing":
        return refused(param, f"{param} is missing", "missing_required_parameter")
    if unknown:
        return refused(param, f"{param or repr(param)} is not known here", "unknown_parameter")
    if problem["type"] == "too_long":
        return refused(param, f"{param} {problem['msg']}")
    return refused(param, f"{param} is {_shown(problem['input'])}; {_allowed(problem)}")


def as_json(value: object, separators: tuple[str, str] | None = None) -> str:
    """JSON in readable letters, or in ASCII if a text is no valid Unicode."""
    readable = json.dumps(value, ensure_ascii=False, separators=separators, default=repr)
    try:
        readable.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=separators, default=repr)
    return readable


_IN_JSON = {
    "bool_type": "it should be true or false",
    "dict_type": "it should be an object",
    "list_type": "it should be a list",
    "model_attributes_type": "it should be an object",
    "model_type": "it should be an object",
    "none_required": "it should be null",
}
"""JSON's words for pydantic's kinds of problems, which use Python's words."""


def _allowed(problem: Mapping[str, Any]) -> str:
    """The values that a field takes, in the words of JSON."""
    if problem["type"] in _IN_JSON:
        return _IN_JSON[problem["type"]]
    if problem["type"] == "union_tag_invalid":
        return f"its type should be one of {problem['ctx']['expected_tags']}".replace("'", '"')
    words = re.sub("^(Input|List|String) should", "it should", problem["msg"]).removeprefix(
        "Value error, "
    )
    return words.replace("'", '"') if problem["type"] == "literal_error" else words


def _names_a_field(part: str | int) -> bool:
    """False for a type that pydantic tried."""
    return isinstance(part, int) or (part.isidentifier() and part != "str")


def _shown(value: object) -> str:
    text = as_json(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


async def answer_error(request: Request, error: Exception) -> Response:
    """The exception handler for everything that can go wrong."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if isinstance(error, CardError):
        error = from_triton(error, getattr(request.state, "guided_by", None))
    elif isinstance(error, HTTPException) and not isinstance(error, ApiError):
        route = f"{request.method[:16]} {request.url.path[:80]}"
        # The headers of a method that a route does not have say which it has.
        error = ApiError(error.status_code, f"{route}: {error.detail}", headers=error.headers)
    elif not isinstance(error, ApiError):
        error = ApiError(500, "the gateway failed; its log says why", code="internal")
    assert isinstance(error, ApiError)
    return error.response()
