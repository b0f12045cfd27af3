"""`card-guard`: the settings as options, then the proxy until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from card_client import CardError, Tls
from card_guard.descriptors import allow_descriptors
from card_guard.server import Guard, StartError, serve

LACKING = 2
"""Exit code when a setting, a file or the port is wrong."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _option(help: str, **more: Any) -> Any:
    return typer.Option(help=help, **more)


@app.command()
def guard(
    triton: Annotated[
        str, _option("Triton's gRPC address, host:port or unix:PATH.", envvar="CARD_URL")
    ] = Guard.triton,
    model: Annotated[
        list[str] | None,
        _option(
            "A model that clients may ask; may be repeated.", show_default=", ".join(Guard.models)
        ),
    ] = None,
    host: Annotated[
        str, _option("Address to listen on: IPv4, IPv6, or :: for both.", envvar="CARD_GUARD_HOST")
    ] = "127.0.0.1",
    port: Annotated[
        int, _option("Port to listen on.", min=1, max=65535, envvar="CARD_GUARD_PORT")
    ] = 9001,
    tls_cert: Annotated[Path | None, _option("PEM file of our certificate for clients.")] = None,
    tls_key: Annotated[Path | None, _option("PEM file of its key.")] = None,
    tls_client_ca: Annotated[
        Path | None, _option("PEM file that clients' certificates must be signed by (mutual TLS).")
    ] = None,
    message_bytes: Annotated[int, _option("Largest request.", min=1)] = Guard.message_bytes,
    calls: Annotated[
        int, _option("Most calls at a time; more get RESOURCE_EXHAUSTED.", min=1)
    ] = Guard.calls,
    idle_s: Annotated[
        float,
        _option(
            "Seconds without a message after which a call is idle: a new one may take its place.",
            min=0.0,
        ),
    ] = Guard.idle_s,
    connection_s: Annotated[
        int | None,
        _option("Seconds after which a client is asked to connect anew; open calls go on.", min=1),
    ] = None,
    beats: Annotated[
        int | None, typer.Option(hidden=True, min=1)  # file descriptor of the supervisor's pipe
    ] = None,
    drain_s: Annotated[int, _option("Seconds open calls may take after SIGTERM.", min=0)] = 30,
) -> None:
    """Pass gRPC requests on to Triton, and refuse those that would end it."""
    try:
        settings = Guard(
            listen=_listen(host, port),
            triton=triton,
            models=tuple(model or Guard.models),
            message_bytes=message_bytes,
            calls=calls,
            idle_s=idle_s,
            connection_s=connection_s,
            beats=beats,
            tls=Tls.if_wanted(False, tls_client_ca, tls_cert, tls_key),
        )
        allow_descriptors()
        asyncio.run(_serve_until_told(settings, drain_s))
    except (CardError, OSError, StartError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(LACKING) from None


def _listen(host: str, port: int) -> str:
    """Host and port in gRPC's form: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


async def _serve_until_told(settings: Guard, drain_s: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(settings, stop, drain_s)
