"""The guard as its own process, in front of a running service."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
from running_service import RunningService

from loading.supervised import reserved_ports

START_S = 60.0


@dataclass
class RunningGuard:
    """Where a guard listens."""

    address: str
    process: subprocess.Popen[bytes]

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.address)


@contextlib.contextmanager
def running_guard(
    service: RunningService, *options: str, credentials: grpc.ChannelCredentials | None = None
) -> Iterator[RunningGuard]:
    """`card-guard` with these options on a free port; yields once it listens.

    credentials  to reach it with, where it speaks TLS
    """
    with reserved_ports(1) as (port,):
        command = [
            *(sys.executable, "-m", "card_guard", f"--port={port}", f"--triton={service.grpc}"),
            "--drain-s=2",
            *options,
        ]
        address = f"127.0.0.1:{port}"
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": ""})
        try:
            plain = grpc.insecure_channel(address)
            with (
                plain
                if credentials is None
                else grpc.secure_channel(address, credentials) as channel
            ):
                grpc.channel_ready_future(channel).result(START_S)
            yield RunningGuard(address, process)
        finally:
            process.terminate()
            assert process.wait(START_S) == 0
