"""Triton and the supervisor: addresses, times, directories."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from card.settings.passed_through import check_one_door, not_of_the_guard, not_the_supervisors
from card.settings.section import OfWrongKindError, Section


def _address(text: str) -> str:
    """The address in its shortest spelling; a zone (`fe80::1%eth0`) is refused."""
    try:
        if "%" in text:
            raise ValueError
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise OfWrongKindError("no IP address") from None


class ServingSettings(Section):
    """Triton and the supervisor."""

    address: Annotated[
        str,
        AfterValidator(_address),
        Field(
            json_schema_extra={
                "form": "an IPv4 or IPv6 address without brackets",
                "examples": ["127.0.0.1"],
            }
        ),
    ] = "127.0.0.1"
    """The one address on which every port listens, an IPv4 or an IPv6 address of this machine.
    0.0.0.0: every IPv4 address. ``::``: every IPv4 and every IPv6 address (one dual-stack
    socket for each port)."""
    http_port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Triton's, for requests and its own health."""
    grpc_port: Annotated[int, Field(ge=1, le=65535)] = 8001
    """Triton's, or with `guard` the guard's, for requests."""
    metrics_port: Annotated[int, Field(ge=1, le=65535)] = 8002
    """Triton's, for Prometheus."""
    health_port: Annotated[int, Field(ge=1, le=65535)] = 8003
    """The supervisor's own liveness and readiness."""
    http_inference: bool = True
    """Whether Triton's own HTTP port takes requests for a text; else it refuses them, whatever they
    hold (SECURITY.md). gRPC and the OpenAI gateway, which uses it, answer either way."""
    guard: bool = False
    """Whether clients' gRPC goes through `card-guard`, which refuses requests that would end the
    server (SECURITY.md), and which the supervisor starts and watches. It listens on `grpc_port`;
    Triton's own gRPC is then a socket that nobody else can reach."""
    guard_arguments: Annotated[
        tuple[str, ...],
        AfterValidator(not_of_the_guard),
        Field(examples=[["--message-bytes=1000000"]]),
    ] = ()
    """Further options for `card-guard`, passed through (TLS, limits)."""
    flush_ms: Annotated[float, Field(ge=0, le=1000)] = 20.0
    """Deltas after the first are gathered for so long, with many streams for longer."""
    deltas_per_s: Annotated[float, Field(ge=1, le=1e6)] | None = None
    """Deltas of all streams together, beside first and last ones, so that sending them leaves the
    cores to the models. Absent: 100 for each core."""
    prefill_chunk: Annotated[int, Field(ge=8, le=256)] = 64
    """Prompt tokens that one pass may take, less the rows that streams verify in it; OpenVINO in
    float32 takes 64 at most."""
    engine_timeout_s: Annotated[float, Field(ge=0.5, le=600)] = 2.0
    """An engine silent for longer is killed and loaded again, as is the guard; engines speak ten
    times a second, the guard four times. Waiting for a processor is no silence, up to ten times
    this."""
    load_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    """How long the start of the server, or loading one model again, may take."""
    calibration_cache: Path | None = None
    """Directory that keeps from start to start what models on processors found out at load: that
    rows are independent, and what passes cost. It holds while weights, options, versions and
    processor are the same. Absent: the user's cache (`$XDG_CACHE_HOME/card-triton`), or where there
    is none, no longer than the service."""
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """How long open streams may finish after SIGTERM."""
    tritonserver: Path | None = None
    """A tritonserver binary in its installation (/opt/tritonserver/bin/tritonserver); absent: the
    container's, else the one that the wheel carries."""
    triton_arguments: Annotated[
        tuple[str, ...], AfterValidator(not_the_supervisors), Field(examples=[["--log-verbose=1"]])
    ] = ()
    """Further options for tritonserver, passed through (TLS, logging)."""

    @property
    def is_ipv6(self) -> bool:
        """Whether `address` is an IPv6 address; beside a port it then stands in brackets."""
        return ":" in self.address

    @property
    def ports(self) -> dict[str, int]:
        """Every port that clients and operators reach, by its field."""
        return {
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "metrics_port": self.metrics_port,
            "health_port": self.health_port,
        }

    @model_validator(mode="after")
    def _each_its_own_port(self) -> ServingSettings:
        owners: dict[int, str] = {}
        for field, port in self.ports.items():
            if (owner := owners.setdefault(port, field)) != field:
                raise ValueError(f"{owner} and {field} are both {port}: choose two different ports")
        return self

    @model_validator(mode="after")
    def _one_door_for_grpc(self) -> ServingSettings:
        if self.guard:
            check_one_door(self.triton_arguments)
        elif self.guard_arguments:
            raise ValueError(
                "guard_arguments are given, but guard is false: set it to true, or leave them out"
            )
        return self
