"""Command-line options: one per input of the model, derived from its table, and the connection's.

`takes` gives them to a command, which receives them as its `**options`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from card_client.chat_template import SYSTEM
from card_client.client import CardClient, Tls
from card_client.wire import INPUTS, GenerateRequest, Tensor

DEFAULT_MAX_TOKENS = 128

_TYPES: dict[str, type] = {"BYTES": str, "BOOL": bool, "INT32": int, "UINT64": int, "FP32": float}

SystemOption = Annotated[
    str | None,
    typer.Option(
        help="System message; an empty text leaves it to the model's template.",
        show_default=SYSTEM,
    ),
]

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Connection:
    """Where the server is and how to reach it."""

    url: str
    model: str
    timeout: float
    tls: bool
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Connection:
        return cls(**{name: options[name] for name in cls.__dataclass_fields__})

    def client(self) -> CardClient:
        """A client for it."""
        tls = Tls.if_wanted(self.tls, self.tls_ca, self.tls_cert, self.tls_key)
        return CardClient(self.url, model=self.model, tls=tls)


def request_of(prompt: str, options: dict[str, Any]) -> GenerateRequest:
    """The request that a command's options describe."""
    inputs = {name: options[name] for name in INPUTS if name in options}
    if forbidden := inputs.get("forbidden_drafter"):
        (inputs["forbidden_drafter"],) = forbidden
    return GenerateRequest(prompt, **inputs)


def takes(*parameters: inspect.Parameter) -> Callable[[Command], Command]:
    """Replaces a command's `**options` by these parameters in what Typer sees."""

    def with_options(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        seen = signature.replace(parameters=[*own, *parameters])
        command.__signature__ = seen  # type: ignore[attr-defined]
        return command

    return with_options


def _option(
    name: str, kind: Any, default: Any, help: str, panel: str, **more: Any
) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    flags = f"{flag}/--no-{flag[2:]}" if kind == (bool | None) else flag
    option = typer.Option(flags, help=help, rich_help_panel=panel, **more)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def model_options(
    *, without: Iterable[str] = (), on: Iterable[str] = ()
) -> list[inspect.Parameter]:
    """One option per input except those `without`; those `on` are true unless said otherwise."""
    return [
        _input_option(name, tensor, True if name in on else None)
        for name, tensor in INPUTS.items()
        if name not in ("text_input", "input_ids", "draft_key") and name not in without
    ]


def _input_option(name: str, tensor: Tensor, default: bool | None) -> inspect.Parameter:
    kind: Any = _TYPES[tensor.dtype]
    if name == "max_tokens":
        # A TensorRT-LLM ensemble has no default of its own.
        return _option(name, kind, DEFAULT_MAX_TOKENS, tensor.help, _MODEL)
    if name == "forbidden_drafter":
        return _option(name, list[kind] | None, None, tensor.help, _MODEL, callback=_one_at_most)
    if tensor.many:
        help = f"{tensor.help} Repeat the option for more."
        return _option(name, list[kind] | None, None, help, _MODEL)
    return _option(name, kind | None, default, tensor.help, _MODEL)


def _one_at_most(given: list[str] | None) -> list[str] | None:
    """As given; the last of several would forbid less than was asked."""
    if given and len(given) > 1:
        raise typer.BadParameter(
            f"a request forbids one drafter, not {len(given)}; "
            "--decoding autoregressive takes candidates from none"
        )
    return given


_MODEL = "Inputs of the model (the server's default where not given)"
_SERVER = "Server"

CONNECTION = [
    _option(
        "url",
        str,
        "localhost:8001",
        "The server's gRPC address, host:port.",
        _SERVER,
        envvar="CARD_URL",
    ),
    _option("model", str, "ensemble", "Which model of the server.", _SERVER),
    _option("timeout", float, 300.0, "Seconds until the answer must be complete.", _SERVER),
    _option("tls", bool, False, "Encrypt the connection.", _SERVER),
    _option("tls_ca", Path | None, None, "PEM file of the server's authority.", _SERVER),
    _option("tls_cert", Path | None, None, "PEM file of this client's certificate.", _SERVER),
    _option("tls_key", Path | None, None, "PEM file of this client's private key.", _SERVER),
]
