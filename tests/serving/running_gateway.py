"""The OpenAI-compatible gateway as its own process, in front of a running service."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
from running_service import ANSWER_S, RunningService

from loading.supervised import reserved_ports

MODEL = "ensemble"
START_S = 60.0


@dataclass
class RunningGateway:
    """Where a gateway listens."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=ANSWER_S)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)

    def post(self, path: str, **body: Any) -> tuple[int, str]:
        """What `curl -d` does: (status, text)."""
        with contextlib.closing(self.connect()) as connection:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


@contextlib.contextmanager
def running_gateway(service: RunningService, *options: str) -> Iterator[RunningGateway]:
    """`card-gateway` with these options on a free port; yields once it is healthy."""
    with reserved_ports(1) as (port,):
        command = [
            *(sys.executable, "-m", "card_gateway", f"--port={port}", f"--triton={service.grpc}"),
            f"--tokenizer={service.settings.target.path}",
            *options,
        ]
        gateway = RunningGateway(
            port, subprocess.Popen(command, env=os.environ | {"PYTHONPATH": ""})
        )
        try:
            _wait_until_healthy(gateway)
            yield gateway
        finally:
            gateway.process.terminate()
            gateway.process.wait(START_S)


def _wait_until_healthy(gateway: RunningGateway) -> None:
    limit = time.monotonic() + START_S
    while True:
        assert gateway.process.poll() is None, "the gateway ended"
        assert time.monotonic() < limit, "the gateway did not become healthy"
        with contextlib.suppress(OSError), contextlib.closing(gateway.connect()) as connection:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            gateway.process.wait(0.05)
