"""The answer while it is written: its items, and the server-sent events that tell of them."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any

from card_client import CardError
from card_gateway.errors import ApiError, from_triton
from card_gateway.events import event_of
from card_gateway.figures import Usage
from card_gateway.generation import Piece
from card_gateway.reading import Workers
from card_gateway.responses.body import ResponseBody
from card_gateway.responses.items import ItemMemory
from card_gateway.tokens import Scores
from card_gateway.tools.calls import Call

Json = dict[str, Any]

_DEFAULT_FORMAT = {"format": {"type": "text"}}


class ResponseAnswer:
    """One request's answer, sent as it grows.

    usage        of the text; it has noted each piece before this answer has
    scores       makes log-probabilities; None: not asked for
    reads_calls  functions may be called in the text: then it has no log-probabilities
    """

    def __init__(
        self,
        identity: str,
        body: ResponseBody,
        usage: Usage,
        scores: Scores | None = None,
        *,
        reads_calls: bool,
    ) -> None:
        self._usage = usage
        self._scores = scores
        self.output: list[Json] = []
        self._reads_calls = reads_calls
        self._is_open = False
        self._told = 0
        self._response: Json = {
            "id": identity,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "output": self.output,
            "usage": None,
            **_asked(body),
        }

    @property
    def is_scored(self) -> bool:
        """Whether the last events repeat the log-probabilities of the whole text."""
        return self._scores is not None

    def opening(self) -> Iterator[Json]:
        """The events before the first piece."""
        yield self._event("response.created", response=self.response())
        yield self._event("response.in_progress", response=self.response())

    def events(self, piece: Piece) -> Iterator[Json]:
        """The events of the next piece of the text."""
        parts = piece.parts if self._reads_calls else (piece.text,)
        scores = [] if self._scores is None else self._scores.of_text(piece)
        told = [token.as_json() for token in scores]
        for part in parts:
            if isinstance(part, Call):
                yield from self._call(part)
            elif part or told:
                yield from self._text(part, told)
        if piece.finish_reason is not None:
            yield from self._end(piece)

    def finish(self, text: Piece) -> None:
        """Take the whole text at once."""
        for _ in self.events(text):
            pass

    def failed(self, error: ApiError) -> Json:
        """The event that tells of a failure."""
        code = "rate_limit_exceeded" if error.status_code == 429 else "server_error"
        self._response |= {"status": "failed", "error": {"code": code, "message": error.message}}
        return self._event("response.failed", response=self.response())

    def response(self) -> Json:
        """The answer so far."""
        return self._response | {"output": list(self.output)}

    def _text(self, text: str, told: Sequence[Json] = ()) -> Iterator[Json]:
        """told  its tokens with their log-probabilities"""
        if not self._is_open or self.output[-1]["type"] != "message":
            yield from self._close()
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._open({"id": _identity("msg"), "type": "message", "role": "assistant"}, [])
            self.output[-1]["content"] = [part]
            yield self._event("response.content_part.added", **self._place(0), part=dict(part))
        whole = self.output[-1]["content"][0]
        whole["text"] += text
        whole["logprobs"] = [*whole["logprobs"], *told]
        if text or told:
            yield self._event(
                "response.output_text.delta", **self._place(0), delta=text, logprobs=list(told)
            )

    def _call(self, call: Call) -> Iterator[Json]:
        if call.id:
            yield from self._close()
            item = {"id": _identity("fc"), "type": "function_call", "call_id": call.id}
            yield self._open(item | {"name": call.name, "arguments": ""})
        self.output[-1]["arguments"] += call.arguments
        if call.arguments:
            yield self._event(
                "response.function_call_arguments.delta", **self._place(), delta=call.arguments
            )

    def _open(self, item: Json, content: list[Json] | None = None) -> Json:
        item |= {"status": "in_progress"} | ({} if content is None else {"content": content})
        self.output.append(item)
        self._is_open = True
        return self._event(
            "response.output_item.added", output_index=len(self.output) - 1, item=dict(item)
        )

    def _close(self, status: str = "completed") -> Iterator[Json]:
        if not self._is_open:
            return
        self._is_open = False
        item = self.output[-1]
        if item["type"] == "message":
            (part,) = item["content"]
            yield self._event(
                "response.output_text.done",
                **self._place(0),
                text=part["text"],
                logprobs=part["logprobs"],
            )
            yield self._event("response.content_part.done", **self._place(0), part=part)
        else:
            yield self._event(
                "response.function_call_arguments.done",
                **self._place(),
                name=item["name"],
                arguments=item["arguments"],
            )
        item["status"] = status
        yield self._event("response.output_item.done", output_index=len(self.output) - 1, item=item)

    def _end(self, last: Piece) -> Iterator[Json]:
        if not self.output:
            yield from self._text("")
        status, details = "completed", None
        if last.finish_reason == "length":
            status, details = "incomplete", {"reason": "max_output_tokens"}
        yield from self._close(status)
        self._response |= {
            "status": status,
            "incomplete_details": details,
            "usage": _usage(self._usage),
        }
        yield self._event(f"response.{status}", response=self.response())

    def _place(self, content_index: int | None = None) -> Json:
        """Where in the answer the last item's part is."""
        place = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        return place if content_index is None else place | {"content_index": content_index}

    def _event(self, kind: str, **content: Any) -> Json:
        self._told += 1
        return {"type": kind, "sequence_number": self._told - 1, **content}


def _identity(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


def _asked(body: ResponseBody) -> Json:
    """The request's fields, as the answer repeats them."""
    asked = body.model_dump(
        include={"text", "tools", "tool_choice", "reasoning"}, by_alias=True, exclude_none=True
    )
    return {
        "model": body.model,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_diagnostics": None,
        "reasoning": {"effort": None, "summary": None} | asked.get("reasoning", {}),
        "store": False,
        "temperature": body.effective_temperature,
        "text": _DEFAULT_FORMAT | asked.get("text", {}),
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "top_logprobs": body.alternatives,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _usage(usage: Usage) -> Json:
    told = usage.as_json()
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **{name: told[name] for name in ("speculation",) if name in told},
    }


async def response_events(
    answer: ResponseAnswer,
    first: Piece,
    pieces: AsyncGenerator[Piece, None],
    memory: ItemMemory | None,
    workers: Workers,
) -> AsyncIterator[bytes]:
    """The answer piece by piece; its items go to `memory` at the end."""

    async def events(piece: Piece) -> bytes:
        is_large = piece.is_large or (bool(piece.finish_reason) and answer.is_scored)

        def made() -> bytes:
            told = answer.events(piece)
            return b"".join(event_of(event, event["type"], large=is_large) for event in told)

        return await workers.run_if_large(is_large, made)

    for event in answer.opening():
        yield event_of(event, event["type"])
    yield await events(first)
    try:
        async for piece in pieces:
            yield await events(piece)
    except CardError as error:
        event = answer.failed(from_triton(error))
        yield event_of(event, event["type"])
    else:
        if memory is not None:
            memory.keep(answer.output)
