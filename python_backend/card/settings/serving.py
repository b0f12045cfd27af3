"""Triton, the guard and the supervisor: addresses, times, directories, logs."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, AnyHttpUrl, Field, TypeAdapter, model_validator

from card.settings.section import Section

LogFormat = Literal["text", "json"]
Port = Annotated[int, Field(ge=1, le=65535)]

_SUPERVISORS_OPTIONS = (
    "--http-port",
    "--grpc-port",
    "--metrics-port",
    "--allow-http",
    "--allow-grpc",
)
_GUARDS_PLACE = ("--triton", "--host", "--port", "--drain-s", "--beats", "--help")


def _triton_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
    for argument in arguments:
        option, _, value = argument.partition("=")
        opens = option in ("--allow-http", "--allow-grpc") and value in ("true", "1")
        # Triton takes an option by any beginning that no other option has.
        if not opens and any(name.startswith(option) for name in _SUPERVISORS_OPTIONS):
            raise ValueError(
                f"{option} is for the supervisor to set; use serving.http_port, grpc_port, "
                "metrics_port, or http_inference: false"
            )
    return arguments


def _guard_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
    for argument in arguments:
        option = argument.partition("=")[0]
        if option in _GUARDS_PLACE:
            raise ValueError(f"{option} is for the supervisor to set, from the fields of serving")
    return arguments


def _address(text: str) -> str:
    """The address in its shortest spelling; a zone (`fe80::1%eth0`) is refused."""
    try:
        return str(ipaddress.ip_address(text.replace("%", "zone")))
    except ValueError:
        raise ValueError("it must be an IPv4 or IPv6 address without brackets") from None


def _collector(url: str) -> str:
    """The URL as written. Triton takes it as a part of a list with commas."""
    if not TypeAdapter(AnyHttpUrl).validate_python(url) or set(url) & set(" ,\t\r\n"):
        raise ValueError("it must have no spaces and no commas")
    return url


class ServingSettings(Section):
    """Triton, the guard and the supervisor."""

    address: Annotated[str, AfterValidator(_address)] = Field(
        "127.0.0.1",
        description="The one address, IPv4 or IPv6, on which every port listens. 0.0.0.0: every "
        "IPv4 address. `::`: every IPv6 address, for gRPC and health every IPv4 address too.",
    )
    http_port: Port = Field(8000, description="Triton's HTTP: requests, its own health.")
    grpc_port: Port = Field(8001, description="Triton's gRPC, or with `guard` the guard's.")
    metrics_port: Port = Field(8002, description="Triton's metrics, for Prometheus.")
    health_port: Port = Field(8003, description="Liveness and readiness of the service.")
    http_inference: bool = Field(
        True, description="Triton's HTTP port takes requests for a text (SECURITY.md)."
    )
    guard: bool = Field(False, description="Clients' gRPC goes through `card-guard` (SECURITY.md).")
    guard_arguments: Annotated[tuple[str, ...], AfterValidator(_guard_arguments)] = Field(
        (), description="Options for `card-guard`, such as --message-bytes=1000000."
    )
    flush_ms: float = Field(
        20, ge=0, le=1000, description="How long deltas after the first are gathered."
    )
    deltas_per_s: Annotated[float, Field(ge=1, le=1e6)] | None = Field(
        None, description="Later deltas of all streams together; null: 100 a core."
    )
    prefill_chunk: int = Field(
        64, ge=8, le=256, description="Prompt tokens of one pass, less verified rows."
    )
    engine_timeout_s: float = Field(
        2, ge=0.5, le=600, description="A process silent for longer is started again."
    )
    load_timeout_s: float = Field(
        120, gt=0, le=3600, description="How long a start or the load of one model may take."
    )
    calibration_cache: Path | None = Field(
        None,
        description="Directory that keeps what models on processors measured at load. null: the "
        "user's cache ($XDG_CACHE_HOME/card-triton), if there is one.",
    )
    drain_s: float = Field(
        30, ge=0, le=3600, description="How long open streams may go on after SIGTERM."
    )
    tritonserver: Path | None = Field(
        None, description="The binary; null: the container's, else the wheel's."
    )
    triton_arguments: Annotated[tuple[str, ...], AfterValidator(_triton_arguments)] = Field(
        (), description="Options for tritonserver, such as --log-verbose=1."
    )

    @property
    def ports(self) -> dict[str, int]:
        """Every port that clients and operators reach, by its field."""
        fields = ("http_port", "grpc_port", "metrics_port", "health_port")
        return {field: getattr(self, field) for field in fields}

    @model_validator(mode="after")
    def _agree(self) -> ServingSettings:
        owners: dict[int, str] = {}
        for field, port in self.ports.items():
            if (owner := owners.setdefault(port, field)) != field:
                raise ValueError(f"{owner} and {field} are both {port}: choose two different ports")
        of_clients = [option for option in self.triton_arguments if option.startswith("--grpc")]
        if self.guard and of_clients:
            raise ValueError(
                f"triton_arguments has {of_clients[0]}, but with guard: true clients meet the "
                "guard: give guard_arguments (--tls-cert, --tls-key, --tls-client-ca, ...)"
            )
        if self.guard_arguments and not self.guard:
            raise ValueError("guard_arguments are given, but guard is false: set it to true")
        return self


class ObservabilitySettings(Section):
    """Logs and traces; metrics are always on."""

    log_format: LogFormat = Field("text", description="key=value pairs, or JSON objects.")
    log_requests: bool = Field(True, description="One log line a request, with its times.")
    log_prompts: bool = Field(False, description="The log also has prompts and inputs.")
    trace_url: Annotated[str, AfterValidator(_collector)] | None = Field(
        None, description="OTLP/HTTP collector, such as http://127.0.0.1:4318/v1/traces."
    )
    trace_rate: int = Field(
        100, ge=1, description="One request in so many is traced, and each `traceparent`."
    )
