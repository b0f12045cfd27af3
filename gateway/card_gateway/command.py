"""`card-gateway`: the settings as options, then uvicorn until SIGTERM."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn

from card_client import CardError, Tls
from card_client.chat_template import ChatTemplateError
from card_gateway.app import Gateway, create_app
from card_gateway.protocol import Http
from card_guard.descriptors import allow_descriptors

KEY_VARIABLE = "CARD_GATEWAY_API_KEY"
LACKING = 2
"""Exit code when a setting or a file is wrong."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _option(help: str, **more: Any) -> Any:
    return typer.Option(help=help, **more)


@app.command()
def serve(
    triton: Annotated[
        str, _option("Triton's gRPC address, host:port.", envvar="CARD_URL")
    ] = Gateway.triton,
    triton_model: Annotated[str, _option("Which model of it is asked.")] = Gateway.triton_model,
    tls: Annotated[bool, _option("Encrypt the connection to Triton.")] = False,
    tls_ca: Annotated[Path | None, _option("PEM file that verifies Triton; implies --tls.")] = None,
    tls_cert: Annotated[Path | None, _option("PEM file of our certificate (mutual TLS).")] = None,
    tls_key: Annotated[Path | None, _option("PEM file of its key.")] = None,
    model: Annotated[str, _option("The name under which clients know it.")] = Gateway.model,
    tokenizer: Annotated[
        Path | None,
        _option(
            "The target's Hugging Face directory or GGUF file, for its chat template and "
            "log-probabilities.",
            envvar="CARD_GATEWAY_TOKENIZER",
        ),
    ] = None,
    host: Annotated[str, _option("Address to listen on.", envvar="CARD_GATEWAY_HOST")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, _option("Port to listen on.", min=1, max=65535, envvar="CARD_GATEWAY_PORT")
    ] = 9000,
    api_key_file: Annotated[
        Path | None, _option(f"File with the key that clients must send; or set ${KEY_VARIABLE}.")
    ] = None,
    body_bytes: Annotated[int, _option("Largest request body.", min=1)] = Gateway.body_bytes,
    connections: Annotated[int, _option("Most connections at a time; more get 503.", min=1)] = 1024,
    timeout_s: Annotated[float, _option("Seconds an answer may take.", min=0.001)] = (
        Gateway.timeout_s
    ),
    at_once: Annotated[int, _option("Texts of one request generated at a time.", min=1)] = (
        Gateway.at_once
    ),
    allow_origin: Annotated[
        list[str] | None,
        _option("Origin whose pages may ask from a browser, or '*'; may be repeated."),
    ] = None,
    page: Annotated[
        bool, _option("Answer / with a page that shows a text and its candidates as they come.")
    ] = False,
    drain_s: Annotated[int, _option("Seconds open answers may take after SIGTERM.", min=0)] = 30,
) -> None:
    """Serve OpenAI's completions and chat completions from CARD on Triton."""
    try:
        key = _api_key(api_key_file)
        trust = Tls.if_wanted(tls, tls_ca, tls_cert, tls_key)
        gateway = Gateway(
            triton,
            triton_model,
            model,
            tokenizer,
            key,
            body_bytes,
            timeout_s,
            trust,
            at_once,
            tuple(allow_origin or ()),
            page,
        )
        application = create_app(gateway)
    except (ChatTemplateError, CardError, OSError) as error:
        _say(f"error: {error}")
        raise typer.Exit(LACKING) from None
    if key is None and not _is_loopback(host):
        _say(f"warning: listening on {host} without an API key; set ${KEY_VARIABLE}")
    allow_descriptors()
    uvicorn.run(
        application,
        http=Http,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=connections,
        timeout_graceful_shutdown=drain_s,
    )


def _api_key(file: Path | None) -> str | None:
    """The key clients must send; never an option, which everyone on the machine could read."""
    key = os.environ.get(KEY_VARIABLE) if file is None else file.read_text(encoding="utf-8")
    return (key or "").strip() or None


def _is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach `host`."""
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except OSError:  # an IPv6 address, or no address at all, which uvicorn will say
        return host == "::1"


def _say(line: str) -> None:
    typer.echo(line, err=True)
