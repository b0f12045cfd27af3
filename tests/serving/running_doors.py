"""The gateway or the guard as its own process, in front of a running service."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import openai
from gateway_double import GatewayAddress
from running_service import ANSWER_S, RunningService

from loading.supervised import reserved_ports

MODEL = "ensemble"
START_S = 60.0


@dataclass
class RunningGateway(GatewayAddress):
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=ANSWER_S)


@contextlib.contextmanager
def running_gateway(service: RunningService, *options: str) -> Iterator[RunningGateway]:
    """`card-gateway` with these options on a free port; yields once it answers."""
    tokenizer = f"--tokenizer={service.settings.target.path}"
    with _running("card_gateway", service, tokenizer, *options) as (port, process):
        gateway = RunningGateway(port)
        while not gateway.listens():
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"the gateway ended: {process.wait(0.05)}")
        yield gateway


@contextlib.contextmanager
def running_guard(
    service: RunningService, *options: str, credentials: grpc.ChannelCredentials | None = None
) -> Iterator[str]:
    """`card-guard` with these options on a free port; yields its address once it listens.

    credentials  to reach it with, where it speaks TLS
    """
    with _running("card_guard", service, "--drain-s=2", *options) as (port, process):
        address = f"127.0.0.1:{port}"
        plain = grpc.insecure_channel(address)
        with plain if credentials is None else grpc.secure_channel(address, credentials) as channel:
            grpc.channel_ready_future(channel).result(START_S)
        yield address
        process.terminate()
        assert process.wait(START_S) == 0


@contextlib.contextmanager
def _running(
    program: str, service: RunningService, *options: str
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port of a door, and its process."""
    with reserved_ports(1) as (port,):
        command = [sys.executable, "-m", program, f"--port={port}", f"--triton={service.grpc}"]
        process = subprocess.Popen([*command, *options], env=os.environ | {"PYTHONPATH": ""})
        try:
            yield port, process
        finally:
            process.terminate()
            process.wait(START_S)
