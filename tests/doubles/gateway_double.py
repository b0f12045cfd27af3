"""The gateway on a free port of the loopback interface, in front of a stand-in for Triton."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from client_double import TritonDouble, response, served

from card_gateway import Gateway, create_app
from card_gateway.protocol import Http

PROMPT: dict[str, Any] = {"model": "ensemble", "prompt": "def f("}
CHAT: dict[str, Any] = {"model": "ensemble", "messages": [{"role": "user", "content": "hello"}]}
LIMIT_S = 20.0


@dataclass
class GatewayAddress:
    """Where a gateway listens."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """One request: POST if there is a body (bytes go as they are). Status, headers, text."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with closing(self.connect()) as connection:
            connection.request(
                "GET" if data is None else "POST",
                path,
                data,
                {"Content-Type": "application/json", **(headers or {})},
            )
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, names, answer.read().decode()

    def listens(self) -> bool:
        try:
            self.ask("/health")
        except ConnectionRefusedError:
            return False
        return True


@dataclass
class RunningGateway(GatewayAddress):
    """A gateway, and the stand-in for Triton that it asks."""

    triton: TritonDouble

    def sent(self) -> dict[str, Any]:
        """The inputs of the last request that reached Triton: name to raw bytes."""
        request = self.triton.requests[-1]
        return {
            tensor.name: raw
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }


@contextmanager
def running_gateway(**options: Any) -> Iterator[RunningGateway]:
    """A gateway with these options of `Gateway` in place of the defaults."""
    with served() as triton, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = create_app(replace(Gateway(triton=triton.address), **options))
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=Http,
                log_level="error",
                limit_concurrency=options.get("requests"),
                timeout_graceful_shutdown=1,
            )
        )
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            gateway = RunningGateway(listener.getsockname()[1], triton)
            while not gateway.listens():
                assert thread.is_alive()
            yield gateway
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def two_pieces() -> list[Any]:
    return [
        response(text_output="héllo", num_input_tokens=3, num_output_tokens=2, finish_reason=""),
        response(
            text_output=" wörld", num_input_tokens=3, num_output_tokens=4, finish_reason="length"
        ),
    ]


def pieces_of(text: str, size: int, why: str = "stop") -> list[Any]:
    """A text so many letters at a time, and why it ended; by default by itself."""
    cuts = [text[place : place + size] for place in range(0, len(text), size)]
    last = len(cuts) - 1
    return [
        response(
            text_output=cut,
            num_input_tokens=3,
            num_output_tokens=place + 1,
            finish_reason=why if place == last else "",
        )
        for place, cut in enumerate(cuts)
    ]


def prompt(gateway: RunningGateway) -> str:
    """The last one that reached Triton."""
    return str(gateway.sent()["text_input"][4:].decode())


def scored(token: int, log_prob: float | None, *top: tuple[int, float]) -> dict[str, Any]:
    """A token as Triton's `details` tell it."""
    return {"id": token, "logprob": log_prob, "top": top}


def tell(piece: Any, **details: Any) -> None:
    """Add `details` to a response of Triton."""
    raw = json.dumps(details).encode()
    piece.infer_response.outputs.add(name="details", datatype="BYTES", shape=[1, 1])
    piece.infer_response.raw_output_contents.append(struct.pack("<I", len(raw)) + raw)


def events(text: str) -> list[Any]:
    """The JSON of every event, and what stands in place of one at the end."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [*map(json.loads, lines[:-1]), lines[-1]]


def number(gateway: RunningGateway, name: str, form: str) -> Any:
    return struct.unpack(form, gateway.sent()[name])[0]
