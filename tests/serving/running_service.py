"""A real service for tests: supervisor, Triton and the pair of `tests/pair`, on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tritonclient.grpc.aio as grpc
import yaml
from prometheus_client.parser import text_string_to_metric_families
from real_pair import PAIR
from tritonclient.grpc import InferResult
from wire_tensors import tensor_of

from card.cache import Pool
from card.serving.geometry import pool_geometry
from card.serving.supervision.residue import sweep
from card.serving.supervision.states import PROBATION_S
from card.settings import REPOSITORY_ROOT, load_settings
from loading.service import Service, starting_service
from loading.supervised import SUPERVISOR, open_local

SHARED_MEMORY = Path("/dev/shm")

START_S = 280.0
STOP_S = 60.0
ANSWER_S = 240.0
BACK_S = 120.0
"""A service that is not back by then stays away. An idle machine brings it back within ten; for the
stand-in of TensorRT-LLM two Python processes load PyTorch for every engine that is loaded again."""
"""Limits that say that something hangs, also on a machine five times as slow as most."""

UNLIKE_OTHERS: dict[str, Any] = {"temperature": 0.25, "seed": 1, "end_id": -1}
"""Of requests that no other test makes: drafts that were wrong there stop it for none of these."""

Overrides = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Reply:
    """One response of a stream: its tensors as flat lists, text decoded."""

    tensors: dict[str, list[Any]]

    @property
    def text(self) -> str:
        return str(self.tensors["text_output"][0])

    @property
    def finish_reason(self) -> str:
        return str(self.one("finish_reason"))

    def one(self, name: str) -> Any:
        """The only element of a tensor."""
        (value,) = self.tensors[name]
        return value


class Refused(Exception):
    """The server answered with an error."""


@dataclass(frozen=True)
class RunningService(Service):
    """How a service for tests is spoken to."""

    settings_file: Path
    log: Path

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Of the supervisor."""
        return self.server.process

    @property
    def health(self) -> dict[str, Any]:
        """What the supervisor tells under /ready; nothing while it does not listen."""
        with contextlib.suppress(OSError):
            return super().health
        return {}

    @property
    def state(self) -> str:
        return str(self.health.get("state"))

    @property
    def health_but_loads(self) -> dict[str, Any]:
        """The same without how far loads are, which go on while models serve."""
        seen = self.health
        for model in seen["models"].values():
            del model["loading"]
        return seen

    @property
    def server_pid(self) -> int:
        return int(self.health["server_pid"])

    def pid_of(self, model: str) -> int:
        """The process of one of the repository's models."""
        return int(self.health["models"][model]["pid"])

    def is_back_without(self, lost: int) -> bool:
        """Whether it is well and all its processes are there, and none of them is `lost`.

        One look: between two of them a process may die.
        """
        seen = self.health
        models = seen.get("models", {}).values()
        pids = {seen.get("server_pid"), *(model["pid"] for model in models)}
        return seen.get("state") == "ready" and not pids & {lost, None}

    def pool(self) -> Pool:
        """The candidate cache, as an engine sees it. The caller closes it."""
        geometry = pool_geometry(self.settings)
        pool = Pool.open(self.settings.cache.directory, self.server_pid, geometry)
        assert pool is not None
        return pool

    # --- HTTP ---------------------------------------------------------------------------------

    def generate(
        self, *, model: str = "ensemble", endpoint: str = "generate", **body: Any
    ) -> tuple[int, dict[str, Any]]:
        """POST to an endpoint that answers once: (status, JSON)."""
        status, text = _post(f"{self.http}/v2/models/{model}/{endpoint}", body)
        return status, json.loads(text)

    def generate_stream(self, **body: Any) -> list[dict[str, Any]]:
        """POST to `generate_stream`; the JSON of every event."""
        _, text = _post(f"{self.http}/v2/models/ensemble/generate_stream", body)
        lines = (line for line in text.splitlines() if line.startswith("data: "))
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric with these labels. Raises `OSError`."""
        url = f"http://{self.server.host}:{self.settings.serving.metrics_port}/metrics"
        with open_local(url, 10.0) as answer:
            page = answer.read().decode()
        # All other lines stay unread: parsing them again and again would keep a core busy.
        lines = (line for line in page.splitlines() if line.startswith(name))
        return sum(
            sample.value
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def is_healthy(self) -> bool:
        return get(f"{self.http}/v2/health/ready")[0] == 200

    # --- gRPC ---------------------------------------------------------------------------------

    async def stream(
        self,
        *,
        model: str = "ensemble",
        timeout_us: int | None = None,
        parameters: dict[str, Any] | None = None,
        client_timeout_s: float = ANSWER_S,
        **tensors: Any,
    ) -> AsyncGenerator[Reply]:
        """Stream one request's replies. Raises `Refused` with the server's message."""
        async with grpc.InferenceServerClient(self.grpc) as client:
            request: dict[str, Any] = {
                "model_name": model,
                "inputs": [tensor_of(name, value) for name, value in tensors.items()],
                "parameters": parameters,
            }
            if timeout_us is not None:
                request["timeout"] = timeout_us

            async def requests() -> AsyncIterator[dict[str, Any]]:
                yield request

            replies = client.stream_infer(requests(), stream_timeout=client_timeout_s)
            async for result, error in replies:
                if error is not None:
                    raise Refused(error.message())
                yield _reply(result)

    async def ask(self, **request: Any) -> list[Reply]:
        """All replies to one request, as `stream` takes it."""
        return [reply async for reply in self.stream(**request)]

    async def text(self, text_input: str, **request: Any) -> str:
        """The text that follows a prompt, streamed."""
        replies = await self.ask(text_input=text_input, stream=True, **request)
        return "".join(reply.text for reply in replies)

    def alone(self, prompts: Sequence[str], **request: Any) -> list[str]:
        """What the target alone writes after each prompt."""

        async def texts() -> list[str]:
            return [await self.text(one, decoding="autoregressive", **request) for one in prompts]

        return asyncio.run(texts())

    async def until_speculates(
        self, prompt: str, told: str = "total_accepted_draft_tokens", **request: Any
    ) -> None:
        """Ask until a text has candidates, as `told` counts them: a draft that comes back, or that
        shares two cores with its target, is often late."""
        limit = time.monotonic() + BACK_S
        count = 0
        while not count:
            assert time.monotonic() < limit, f"{told} stays 0"
            (reply,) = await self.ask(
                text_input=prompt, max_tokens=64, return_perf_metrics=True, **request
            )
            count = int(reply.one(told))

    # --- what is waited for -------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], what: str, limit_s: float = ANSWER_S) -> None:
        """Look again and again until `holds()`; fails with `what` after `limit_s`."""
        limit = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < limit, f"not within {limit_s:g} s: {what}"
            await asyncio.sleep(0.05)

    async def until_back_without(self, lost: int) -> None:
        """Wait, as long as it may be away, for another process and a service that is well."""
        await self.until(lambda: self.is_back_without(lost), f"back without {lost}", BACK_S)

    async def outlast_probation(self, back_s: float) -> None:
        """Wait out the probation of what came back at `back_s`: struck sooner, a model counts as
        one that its recovery did not bring back, and the second such blow restarts the server."""
        await self.until(lambda: time.monotonic() - back_s > PROBATION_S, "the probation is over")

    def await_ready(self) -> None:
        """Returns once it is: after its start, and after a restart of its server."""
        limit = time.monotonic() + START_S
        while not self.server.is_ready():
            assert time.monotonic() < limit, "the service is not ready"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)

    def stop(self) -> None:
        """End it as an operator would, and make sure that nothing stays behind."""
        self.server.stop()
        try:
            self.process.wait(STOP_S)
        finally:
            self.process.kill()


@contextlib.contextmanager
def running_service(
    folder: Path, overrides: Overrides, python: Path = Path(sys.executable)
) -> Iterator[RunningService]:
    """Start a service with these settings in place of the defaults; yields once it is ready.

    `python` is the interpreter of another virtual environment, if it is to run in that.
    """
    # Of its own: another service that starts sweeps a pool whose `card` was killed.
    shared_memory = Path(tempfile.mkdtemp(prefix="card-test-", dir=SHARED_MEMORY))
    # As in a checkout whose path has a space, which Triton's Python backend does not bear.
    repository = folder / "model repository"
    shutil.copytree(REPOSITORY_ROOT / "model_repository", repository)
    settings_file, log = _settings_file(folder, overrides, shared_memory), folder / "service.log"
    settings = load_settings(settings_file)
    variables = {"CARD_SERVING__DRAIN_S": str(settings.serving.drain_s)}
    command = (python, *SUPERVISOR[1:], f"--model-repository={repository}")
    try:
        with starting_service(settings, settings_file, log, variables, command) as started:
            service = RunningService(started.settings, started.server, settings_file, log)
            try:
                service.await_ready()
                yield service
            finally:
                service.stop()
    finally:
        sweep(shared_memory)  # what a supervisor that was killed could not
        shutil.rmtree(shared_memory)


def _settings_file(folder: Path, overrides: Overrides, shared_memory: Path) -> Path:
    """The settings of a service for tests, but for what `overrides` says of them."""
    content = {
        section: dict(values) if isinstance(values, Mapping) else values
        for section, values in overrides.items()
    }
    # Less than its test waits, so that the log says which model it was that did not load.
    patient = {"drain_s": 5.0, "load_timeout_s": START_S - 20.0}
    content["serving"] = {**patient, **content.get("serving", {})}
    content["cache"] = {"directory": str(shared_memory), **content.get("cache", {})}
    for role in ("target", "draft"):
        content[role] = {"path": str(PAIR / role), **content.get(role, {})}
    content["target"] = {"threads": 1, "threads_alone": 2, **content["target"]}
    # So small a target may be so fast that its draft is rightly stopped; with fixed rows never.
    content["speculation"] = {"rows": 8, **content.get("speculation", {})}
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def _post(url: str, body: Mapping[str, Any]) -> tuple[int, str]:
    request = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _reply(result: InferResult) -> Reply:
    tensors = {}
    for output in result.get_response().outputs:
        row = result.as_numpy(output.name).reshape(-1).tolist()
        tensors[output.name] = [item.decode() if isinstance(item, bytes) else item for item in row]
    return Reply(tensors)


StartService = Callable[[Overrides], contextlib.AbstractContextManager[RunningService]]
"""Starts a service with settings that differ from the defaults; see `conftest`."""
