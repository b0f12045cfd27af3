"""Hostile requests to every model of a real server: raw tensors over gRPC, JSON over HTTP.

What must hold: every request is answered in time, by a text or by an error that says something and
is no accident; no process dies; and in between an ordinary request gets its right text.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc
from hostile_values import DATATYPES, FLOATS, INTEGERS, content_of, packed_bytes
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from running_service import RunningService
from tritonclient.grpc import service_pb2, service_pb2_grpc
from trying import try_inputs

from card.serving.requests.delta import Numbers

MODELS = (
    *("ensemble", "card", "draft", "target", "preprocessing", "postprocessing"),
    *("ensemble_unary", "tensorrt_llm", "llmapi", "remote"),
)
PROMPT = b"def fibonacci(n):"
ANSWER_S = 60.0
ACCIDENTS = ("Traceback", "Failed to process the request(s)", "Stub process")
"""What the server says about a request that no code foresaw."""
_LOOK_EVERY = 50
_MANY = 64
"""More values than this are not drawn one by one."""
SHAPES = st.one_of(
    st.sampled_from([[], [0], [1], [2], [1, 0], [2, 1], [1, 2], [1, 1, 1], [-1], [1, -1]]),
    st.sampled_from([[1, 1 << 40], [1 << 62, 1 << 62], [1, 70000]]),
    st.lists(st.integers(-2, 5), max_size=4),
)


EVERY_MODEL = tuple(f"--model={model}" for model in MODELS)
"""Options of a guard that leaves no request out because of its model."""


class Wrong(AssertionError):
    """The service did not stand an input."""


@dataclass(frozen=True)
class RawTensor:
    """One input as it travels, whether or not it makes sense."""

    name: str
    datatype: str
    shape: list[int]
    content: bytes = field(repr=False)

    def __repr__(self) -> str:
        shown = self.content[:80]
        return f"{self.name} {self.datatype}{self.shape} {shown!r} ({len(self.content)} bytes)"


@dataclass(frozen=True)
class RawRequest:
    """One request to one model. `parameters` are the request's own; its outputs are to be sorted
    into so many `classes`, 0: not at all."""

    model: str
    tensors: tuple[RawTensor, ...]
    parameters: tuple[tuple[str, bool | int | str], ...] = ()
    version: str = ""
    outputs: tuple[str, ...] = ()
    classes: int = 0

    def message(self) -> Any:
        request = service_pb2.ModelInferRequest(model_name=self.model, model_version=self.version)
        for tensor in self.tensors:
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            request.raw_input_contents.append(tensor.content)
        for name in self.outputs:
            output = request.outputs.add(name=name)
            if self.classes:
                output.parameters["classification"].int64_param = self.classes
        for name, value in self.parameters:
            parameter = request.parameters[name]
            if isinstance(value, bool):
                parameter.bool_param = value
            elif isinstance(value, int):
                parameter.int64_param = value
            else:
                parameter.string_param = value
        return request


# --- what is drawn -------------------------------------------------------------------------------


def hostile_tensor(known: dict[str, tuple[str, list[int]]]) -> SearchStrategy[RawTensor]:
    """Mostly a known name with its datatype and a fitting shape; sometimes none of that."""

    @st.composite
    def draw(draw: st.DrawFn) -> RawTensor:
        name = draw(st.sampled_from([*known, "text_inputs", "", "\u00e9", "x" * 3000]))
        datatype, shape = known.get(name, ("INT32", [1, 1]))
        shape = [draw(st.integers(0, 20)) if size < 0 else size for size in shape]
        if draw(st.integers(0, 7)) == 0:
            datatype = draw(st.sampled_from(DATATYPES))
        if draw(st.integers(0, 7)) == 0:
            shape = draw(SHAPES)
        count = 1
        for size in shape:
            count *= max(size, 0)
        content = draw(content_of(datatype, count if count <= _MANY else 1))
        if count > _MANY and draw(st.booleans()):
            content = bytes(4 * min(count, 1 << 20))
        if draw(st.integers(0, 15)) == 0:
            content = draw(st.sampled_from([b"", content[:-1], content + b"\0", content * 2]))
        return RawTensor(name, datatype, shape, content)

    return draw()


def hostile_request(known: dict[str, dict[str, tuple[str, list[int]]]]) -> SearchStrategy[Any]:
    """A sound request with some of its tensors replaced, added or left out."""

    @st.composite
    def draw(draw: st.DrawFn) -> RawRequest:
        model = draw(st.sampled_from(MODELS))
        tensors = {
            name: tensor
            for name, tensor in _sound().items()
            if name in known[model] and draw(st.integers(0, 9))
        }
        for tensor in draw(st.lists(hostile_tensor(known[model]), max_size=3)):
            # A wrong one beside a sound one of the same name, or in its place.
            key = tensor.name if draw(st.integers(0, 9)) else f"{tensor.name} again"
            tensors[key] = tensor
        parameters = st.tuples(
            st.sampled_from(["timeout", "priority", "sequence_id", "id", "binary_data", "zzz"]),
            st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans(), st.text(max_size=9)),
        )
        return RawRequest(
            model,
            tuple(tensors.values()),
            tuple(draw(st.lists(parameters, max_size=1))) if not draw(st.integers(0, 5)) else (),
            draw(st.sampled_from([""] * 9 + ["1", "2", "-1", "x", "9" * 30])),
            tuple(draw(st.sampled_from([[]] * 9 + [["text_output"], ["nothing"], ["epoch"]]))),
        )

    return draw()


def deadly_request(known: dict[str, dict[str, tuple[str, list[int]]]]) -> SearchStrategy[Any]:
    """One that ends this version of Triton, as often as not (SECURITY.md, Known holes)."""

    @st.composite
    def draw(draw: Any) -> RawRequest:
        sound = [(m, tuple(t for n, t in _sound().items() if n in known[m])) for m in MODELS]
        request: RawRequest = draw(
            st.one_of(hostile_request(known), st.sampled_from([RawRequest(*s) for s in sound]))
        )
        if draw(st.booleans()):
            outputs, classes = draw(st.sampled_from([["text_output"], ["cum_log_probs"]])), 1
            request = replace(request, outputs=tuple(outputs), classes=classes)
        if request.tensors and draw(st.booleans()):
            first, *others = request.tensors
            shape = draw(st.sampled_from([[1, 1 << 62], [1 << 31, 1 << 31], [1, (1 << 61) + 1]]))
            request = replace(request, tensors=(replace(first, shape=shape), *others))
        return request

    return draw()


def _sound() -> dict[str, RawTensor]:
    ids, numbers = (5).to_bytes(4, "little"), len(Numbers._fields)
    return {
        "text_input": RawTensor("text_input", "BYTES", [1, 1], packed_bytes([PROMPT])),
        "max_tokens": RawTensor("max_tokens", "INT32", [1, 1], (4).to_bytes(4, "little")),
        "input_ids": RawTensor("input_ids", "INT32", [1, 3], ids * 3),
        "key": RawTensor("key", "BYTES", [1], packed_bytes([b"guess"])),
        "deadline_ns": RawTensor("deadline_ns", "INT64", [1], ((1 << 62).to_bytes(8, "little"))),
        "delta_text": RawTensor("delta_text", "BYTES", [1, 2], packed_bytes([b"text", b""])),
        "delta_numbers": RawTensor("delta_numbers", "INT64", [1, numbers], bytes(8 * numbers)),
        "delta_log_probs": RawTensor("delta_log_probs", "FP32", [1, 1], bytes(4)),
    }


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        INTEGERS,
        FLOATS,
        st.text(max_size=40),
        st.sampled_from(["card", "x" * 100_000]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


# --- what is done with it ------------------------------------------------------------------------


class WireFuzz:
    """One real service under hostile requests.

    guard  address of one in front of it
    """

    def __init__(self, service: RunningService, guard: str) -> None:
        self._service = service
        self._known = {model: _inputs_of(service, model) for model in MODELS}
        self._channels = [
            grpc.insecure_channel(address, [("grpc.max_send_message_length", 1 << 30)])
            for address in (service.grpc, guard)
        ]
        self._direct, self._guarded = map(service_pb2_grpc.GRPCInferenceServiceStub, self._channels)
        self._asked = 0
        self._right = self._ask_ordinarily()
        self._processes = self._pids()
        self.answered, self.refused = 0, 0

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def over_grpc(self, seed: int, examples: int) -> int:
        """Raw tensors to every model; how many requests were sent."""
        return self._try_tensors(self._direct, hostile_request(self._known), seed, examples)

    def through_guard(self, seed: int, examples: int) -> int:
        """The same through the guard, and what ends a server without one."""
        return self._try_tensors(self._guarded, deadly_request(self._known), seed, examples)

    def _try_tensors(
        self, stub: Any, requests: SearchStrategy[RawRequest], seed: int, examples: int
    ) -> int:
        tried = try_inputs(requests, partial(self._send, stub), seed=seed, examples=examples)
        self._look()
        return tried

    def over_http(self, seed: int, examples: int) -> int:
        """JSON, sound or not, to `generate` and `generate_stream` of every model."""
        names = st.sampled_from([*self._known["card"], *self._known["draft"], "zzz", ""])
        bodies = st.one_of(
            st.dictionaries(names, JSON_VALUES, max_size=4).map(
                lambda body: json.dumps({"text_input": PROMPT.decode(), "max_tokens": 4} | body)
            ),
            JSON_VALUES.map(json.dumps),
            st.binary(max_size=40).map(lambda raw: raw.decode("latin-1")),
        )
        requests = st.tuples(
            st.sampled_from(MODELS), st.sampled_from(["generate", "generate_stream"]), bodies
        )
        tried = try_inputs(requests, self._post, seed=seed, examples=examples)
        self._look()
        return tried

    def _send(self, stub: Any, request: RawRequest) -> None:
        error, replies = "", []
        try:
            stream = stub.ModelStreamInfer(iter([request.message()]), timeout=ANSWER_S)
            replies = list(stream)
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise Wrong("no answer in time") from failure
            if failure.code() is grpc.StatusCode.UNAVAILABLE:
                raise Wrong(f"the server is gone: {failure.details()}") from failure
            error = failure.details() or ""
            if not error:
                raise Wrong(f"a refusal without a word: {failure.code()}") from failure
        for reply in replies:
            error = error or reply.error_message
        self._judge(error, answered=bool(replies))

    def _post(self, request: tuple[str, str, str]) -> None:
        model, endpoint, body = request
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._service.settings.serving.http_port, timeout=ANSWER_S
        )
        try:
            connection.request(
                "POST", f"/v2/models/{model}/{endpoint}", body.encode("latin-1", "replace")
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        except TimeoutError:
            raise Wrong("no answer in time") from None
        except (OSError, http.client.HTTPException) as failure:
            raise Wrong(f"the server is gone: {failure!r}") from failure
        finally:
            connection.close()
        refused = answer.status != 200 or '"error"' in text
        self._judge(text if refused else "", answered=bool(text))

    def _judge(self, error: str, *, answered: bool) -> None:
        if any(accident in error for accident in ACCIDENTS):
            raise Wrong(f"an accident: {error[:400]}")
        if not error and not answered:
            raise Wrong("neither an answer nor a refusal")
        self.refused += bool(error)
        self.answered += not error
        self._asked += 1
        if self._asked % _LOOK_EVERY == 0:
            self._look()

    def _look(self) -> None:
        """Every process is the one it was, and an ordinary request gets its text."""
        if (processes := self._pids()) != self._processes:
            raise Wrong(f"processes were replaced: {self._processes} became {processes}")
        if (text := self._ask_ordinarily()) != self._right:
            raise Wrong(f"an ordinary request got {text!r} in place of {self._right!r}")

    def _ask_ordinarily(self) -> str:
        status, reply = self._service.generate(text_input=PROMPT.decode(), max_tokens=12)
        if status != 200:
            raise Wrong(f"an ordinary request was refused: {reply}")
        return str(reply["text_output"])

    def _pids(self) -> dict[str, Any]:
        health = self._service.health
        if not health.get("ready"):
            raise Wrong(f"the service is not ready: {health}")
        return {"server": health["server_pid"]} | {
            model: told["pid"] for model, told in health["models"].items()
        }


def _inputs_of(service: RunningService, model: str) -> dict[str, tuple[str, list[int]]]:
    """Names, datatypes and shapes, as the server tells them."""
    connection = http.client.HTTPConnection("127.0.0.1", service.settings.serving.http_port)
    connection.request("GET", f"/v2/models/{model}")
    metadata = json.loads(connection.getresponse().read())
    connection.close()
    return {t["name"]: (t["datatype"], t["shape"]) for t in metadata["inputs"]}
