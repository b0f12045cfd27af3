"""The async client: stream a text, generate it whole, ask whether the server is ready."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import InferResult
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from card_client.channel import FIRST_S, channel_options, only, responses_of
from card_client.chat_template import ChatTemplate, template_of
from card_client.errors import CardError, call_error, invalid, server_error
from card_client.wire import (
    Completion,
    Delta,
    Draft,
    GenerateRequest,
    decode,
    encode,
    encode_draft,
    utf8,
)

DEFAULT_PORT = 8001
DEFAULT_TIMEOUT_S = 300.0
LONGEST_TIMEOUT_S = 365 * 24 * 3600.0
"""A longer deadline overflows in gRPC, or passes at once."""

NEEDED = ("preprocessing", "card", "target", "postprocessing")
"""The models without which CARD writes no text."""
REMOTE = "remote"
"""The model that takes what devices draft."""

_HEADER_NAME = re.compile(r"[0-9a-z_.-]+(?<!-bin)")
_HEADER_VALUE = re.compile(r"[ -~]*")


@dataclass(frozen=True)
class Tls:
    """PEM files for an encrypted connection; with none, the system's authorities are trusted.

    `ca` verifies the server; `cert` and `key` together identify this client (mutual TLS).
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def if_wanted(
        cls, wanted: bool, ca: Path | None, cert: Path | None, key: Path | None
    ) -> Tls | None:
        """None where it is not wanted; naming a file asks for it too."""
        return cls(ca, cert, key) if wanted or ca or cert or key else None

    def __post_init__(self) -> None:
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None:
                _check_readable(f"the TLS {name} file", path)
        if (self.cert is None) != (self.key is None):
            raise invalid("TLS cert and key belong together; give both or neither")


class CardClient:
    """Speaks to one model of one Triton server over gRPC.

        async with CardClient("localhost:8001") as client:
            async for delta in client.stream(GenerateRequest("def f(", 64), timeout_s=30):
                print(delta.text, end="")

    Belongs to the event loop it is first used in; any number of requests may run at once.
    Every method raises `CardError` and nothing else when a request fails.
    """

    def __init__(
        self,
        url: str = f"localhost:{DEFAULT_PORT}",
        *,
        model: str = "ensemble",
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        balanced: bool = False,
        first_response_s: float = FIRST_S,
    ) -> None:
        """`url` is `host` or `host:port`, without a scheme; `headers` go with every request.

        With `balanced` each request goes to the next of the addresses that the host's name has,
        otherwise all go to the first that answers. A request that is left before its first response
        is cancelled with it, and after `first_response_s` without it.
        """
        self.address = _address(url)
        utf8("model", model)
        self.model = model
        self._tls = tls
        self._headers = _metadata(headers or {})
        self._balanced = balanced
        self._first_response_s = first_response_s
        self._closed = False

    async def __aenter__(self) -> CardClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and, with it, every request that still runs (`CANCELLED`)."""
        self._closed = True
        if "_triton" in self.__dict__:
            await self._triton.close()

    async def stream(
        self,
        request: GenerateRequest,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        request_id: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Yields the text piece by piece, as the server generates it.

        `timeout_s` bounds the whole answer, here and on the server; None waits without limit.
        Leaving the loop early (break, an exception, a cancelled task) cancels the request on
        the server; a caller who keeps the iterator in a variable closes it with
        `contextlib.aclosing`. `headers` go with this request beside those of the client.
        """
        ended = False
        responses = self._exchange(replace(request, stream=True), timeout_s, request_id, headers)
        async with aclosing(responses):
            async for result in responses:
                delta = decode(Delta, result)
                # A server that does not report a reason (None) cannot be held to it.
                ended = delta.finish_reason != ""
                yield delta
        if not ended:
            raise CardError("INTERNAL", f"{self.address} ended the stream before the text was done")

    async def generate(
        self,
        request: GenerateRequest,
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        request_id: str = "",
    ) -> Completion:
        """Returns the whole text at once; arguments as for `stream`."""
        completion = None
        responses = self._exchange(replace(request, stream=False), timeout_s, request_id)
        async with aclosing(responses):
            async for result in responses:
                completion = decode(Completion, result)
        if completion is None:
            raise CardError("INTERNAL", f"{self.address} closed the request without an answer")
        return completion

    async def send_drafts(
        self,
        key: str,
        drafts: AsyncIterable[Draft],
        *,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> CardError | None:
        """Sends all `drafts` on a separate gRPC stream, for the text of the request with the
        `draft_key` `key`; see `card_client.edge`.

        Each is sent when the one before is answered: Triton 2.51 may end where a stream breaks
        in which many answers are still to come. A draft that the server does not take is no error:
        the text comes without it. Returns why the first was refused, if most of several were: one
        alone may have come behind the end of its text.
        """
        _check_timeout(timeout_s)
        answered = asyncio.Event()
        refusals: list[CardError] = []
        taken = 0

        async def messages() -> AsyncIterator[dict[str, Any]]:
            async for draft in drafts:
                answered.clear()
                yield {"model_name": REMOTE, "inputs": encode_draft(key, draft)}
                await answered.wait()

        with self._errors_as_ours(timeout_s):
            call = self._triton.stream_infer(
                messages(), stream_timeout=timeout_s, headers=self._headers
            )
            async for _, error in call:
                if error is None:
                    taken += 1
                else:
                    refusals.append(server_error(error.message()))
                answered.set()
        return refusals[0] if len(refusals) > max(1, taken) else None

    async def is_ready(self, *, timeout_s: float | None = 5.0) -> bool:
        """Whether a request to the model would be taken now.

        `timeout_s` bounds each of the few calls that takes.
        """
        _check_timeout(timeout_s)
        terms: dict[str, Any] = {"headers": self._headers, "client_timeout": timeout_s}
        with self._errors_as_ours(timeout_s):
            if not await self._triton.is_model_ready(self.model, **terms):
                return False
            # Without its draft a server answers, and Triton does not call it ready.
            return bool(await self._triton.is_server_ready(**terms)) or all(
                [await self._triton.is_model_ready(name, **terms) for name in NEEDED]
            )

    async def chat_template(self, *, timeout_s: float | None = 5.0) -> ChatTemplate | None:
        """How the server's model wants a conversation written down; None: the server does not say.

        Raises `CardError`, `INVALID_ARGUMENT` if the template that it tells is none.
        """
        return template_of(await self.parameters(timeout_s=timeout_s))

    async def parameters(self, *, timeout_s: float | None = 5.0) -> dict[str, str]:
        """What the server tells of the model in its configuration, as texts."""
        _check_timeout(timeout_s)
        with self._errors_as_ours(timeout_s):
            found = await self._triton.get_model_config(
                self.model, headers=self._headers, client_timeout=timeout_s
            )
        return {name: value.string_value for name, value in found.config.parameters.items()}

    @cached_property
    def _triton(self) -> InferenceServerClient:
        """The connection; opened at first use, because gRPC ties it to the running loop."""
        tls = self._tls or Tls()
        return InferenceServerClient(
            self.address,
            ssl=self._tls is not None,
            root_certificates=tls.ca,
            private_key=tls.key,
            certificate_chain=tls.cert,
            channel_args=channel_options(self.address, balanced=self._balanced),
        )

    async def _exchange(
        self,
        request: GenerateRequest,
        timeout_s: float | None,
        request_id: str,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[InferResult, None]:
        """Sends one request on a gRPC stream of its own and yields the responses."""
        _check_timeout(timeout_s)
        utf8("request_id", request_id)
        message: dict[str, Any] = {
            "model_name": self.model,
            "inputs": encode(request),
            "request_id": request_id,
            "timeout": None if timeout_s is None else math.ceil(timeout_s * 1e6),
        }
        with self._errors_as_ours(timeout_s):
            call = self._triton.stream_infer(
                only(message),
                stream_timeout=timeout_s,
                headers=self._headers | _metadata(headers or {}),
            )
            async with aclosing(responses_of(call, self._first_response_s)) as responses:
                async for result in responses:
                    yield result

    @contextmanager
    def _errors_as_ours(self, timeout_s: float | None) -> Iterator[None]:
        """Whatever goes wrong inside, as a `CardError`."""
        began_s = time.monotonic()
        try:
            if self._closed:
                raise CardError("FAILED_PRECONDITION", "this client is closed; make another one")
            yield
        except (InferenceServerException, grpc.RpcError) as error:
            taken_s = time.monotonic() - began_s
            raise call_error(error, self.address, timeout_s, taken_s) from error
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            # gRPC also raises these for a closed channel, without a cancelled caller.
            if self._closed and not _caller_is_cancelled():
                raise CardError("CANCELLED", "this client was closed meanwhile") from error
            raise


def _address(url: str) -> str:
    """`host:port` for gRPC, with the default port where none is given."""
    if "/" in url or not url.strip() or len(url.split()) > 1:
        raise invalid(f"url is {url!r}; it must be host:port without a scheme, as localhost:8001")
    host, colon, port = url.strip().rpartition(":")
    if not colon or port.endswith("]"):
        return f"{url.strip()}:{DEFAULT_PORT}"
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise invalid(f"url is {url!r}; the port must be a number from 1 to 65535")
    if ":" in host and not host.startswith("["):
        raise invalid(f"url is {url!r}; an IPv6 address stands in brackets, as [::1]:8001")
    return f"{host}:{port}"


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as gRPC takes them. Raises `CardError`."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name.lower()):
            raise invalid(
                f"a header is named {name!r}; allowed are letters, digits, '-', '_' and '.', and "
                "'-bin' is not allowed at its end"
            )
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise invalid(f"the value of the header {name} must be a text of visible ASCII")
    return {name.lower(): value for name, value in headers.items()}


def _check_readable(what: str, path: Path) -> None:
    try:
        is_file = path.is_file()
        if is_file:
            path.open("rb").close()
    except OSError as error:
        raise invalid(f"{what} {path} cannot be read: {error.strerror}") from error
    if not is_file:
        raise invalid(f"{what} {path} does not exist")


def _caller_is_cancelled() -> bool:
    """Whether the running task was cancelled; False on Python 3.10, which does not tell."""
    task = asyncio.current_task()
    return task is not None and hasattr(task, "cancelling") and task.cancelling() > 0


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise invalid(
            f"timeout_s is {timeout_s}; it must be a positive number of seconds, at most "
            f"{LONGEST_TIMEOUT_S:g} (a year), or None for no limit"
        )
