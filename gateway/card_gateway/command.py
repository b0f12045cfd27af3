"""`card-gateway`: the settings as options, then uvicorn until SIGTERM."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn

from card_client import CardError, Tls
from card_client.chat_template import ChatTemplateError
from card_gateway.app import create_app
from card_gateway.protocol import HEAD_BYTES, Http
from card_gateway.routes import Gateway
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
    host: Annotated[
        str,
        _option("Address to listen on: IPv4, IPv6, or :: for both.", envvar="CARD_GATEWAY_HOST"),
    ] = "127.0.0.1",
    port: Annotated[
        int, _option("Port to listen on.", min=1, max=65535, envvar="CARD_GATEWAY_PORT")
    ] = 9000,
    api_key_file: Annotated[
        Path | None, _option(f"File with the key that clients must send; or set ${KEY_VARIABLE}.")
    ] = None,
    body_bytes: Annotated[int, _option("Largest request body.", min=1)] = Gateway.body_bytes,
    connections: Annotated[
        int,
        _option(
            "Most connections at a time: one more takes the place of an idle one. And most open "
            "requests: one more gets 503.",
            min=1,
        ),
    ] = Gateway.requests,
    keep_alive_s: Annotated[
        int, _option("Seconds after an answer until an idle connection is closed.", min=1)
    ] = 75,
    timeout_s: Annotated[
        float, _option("Seconds an answer may take, all of its texts together.", min=0.001)
    ] = Gateway.timeout_s,
    at_once: Annotated[int, _option("Texts of one request generated at a time.", min=1)] = (
        Gateway.at_once
    ),
    allow_origin: Annotated[
        list[str] | None,
        _option("Origin of pages that may call from a browser, or '*'; may be repeated."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        _option(
            "Host name under which clients may ask without a key, beside this machine's own, or "
            "'*'; may be repeated.",
            envvar="CARD_GATEWAY_ALLOW_HOST",
        ),
    ] = None,
    server_metrics: Annotated[
        str | None,
        _option(
            "Address of the metrics of the one server behind this gateway, for a picker of "
            "endpoints: http://127.0.0.1:8002/metrics.",
            envvar="CARD_GATEWAY_SERVER_METRICS",
        ),
    ] = None,
    page: Annotated[
        bool, _option("Answer / with a page that shows a text and its candidates as they come.")
    ] = False,
    drain_s: Annotated[int, _option("Seconds open answers may take after SIGTERM.", min=0)] = 30,
) -> None:
    """Serve OpenAI's completions, chat completions and responses from CARD on Triton."""
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
            (*(allow_host or ()), host),
            connections,
            server_metrics,
        )
        application = create_app(gateway)
    except (ChatTemplateError, CardError, OSError) as error:
        _say(f"error: {error}")
        raise typer.Exit(LACKING) from None
    if key is None and not _is_loopback(host):
        _say(
            f"warning: listening on {host} without an API key: only --allow-host and this "
            f"machine's names are answered; set ${KEY_VARIABLE}"
        )
    allow_descriptors()
    # What was made so far stays. A body of many small objects must not have it looked through.
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    config = uvicorn.Config(
        application,
        http=Http,
        loop="asyncio",
        host=host.strip("[]"),
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=connections,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=drain_s,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    # A socket of its own takes IPv4 too, if the kernel lets it.
    sockets = [config.bind_socket()] if config.host == "::" else None
    uvicorn.Server(config).run(sockets)


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
