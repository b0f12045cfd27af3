"""`scripts/run` after the set-up: one completion, or a server.

The text streams to the terminal. Then the prompt is decoded as the server is set and plainly, and
both figures are put side by side. Every signal leads through the same exit, which stops the server,
so nothing stays behind.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import typer
from rich.console import Console

from card.serving.prerequisites import check_ports
from card.settings import REPOSITORY_ROOT, Settings, SettingsError, load_settings
from card_client import CardError, GenerateRequest
from card_client.chat_template import ChatTemplateError
from card_client.options import SystemOption
from demonstration.comparison import compare
from demonstration.gateway import GatewayProcess, curl_line
from demonstration.requests import allowed_tokens, prompt_of, try_line
from loading.supervised import (
    ChildProcess,
    ProcessEndedError,
    SupervisedServer,
    complaints,
    last_words,
)
from refusal import REFUSED, refuse

COMPLETION_TOKENS = 192
INTERRUPTED = 130
LOOK_S = 0.1
OPENAI_PORT = 9000
"""The port of Triton's own OpenAI-compatible frontend."""

Result = TypeVar("Result")


class Interrupted(Exception):
    """Ctrl-C, SIGTERM or a closed terminal."""


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _port(what: str, default: str) -> Any:
    return typer.Option(help=f"{what} port.", min=1, max=65535, show_default=default)


@app.command()
def run(
    prompt: Annotated[
        str | None,
        typer.Argument(help="A question, or a text to continue.", show_default="an example"),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it stands, without chat template.")
    ] = False,
    system: SystemOption = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve until Ctrl-C or SIGTERM.")] = False,
    http_port: Annotated[int | None, _port("HTTP", "8000")] = None,
    grpc_port: Annotated[int | None, _port("gRPC", "8001")] = None,
    metrics_port: Annotated[int | None, _port("Metrics", "8002")] = None,
    health_port: Annotated[int | None, _port("Health", "8003 of a server, or a free one")] = None,
    openai: Annotated[
        bool, typer.Option("--openai", help="Serve, and OpenAI's HTTP interface with it.")
    ] = False,
    openai_port: Annotated[
        int, typer.Option(help="Port of OpenAI's interface.", min=1, max=65535)
    ] = OPENAI_PORT,
    settings: Annotated[
        Path | None, typer.Option(help="Another settings file (YAML).", show_default="built in")
    ] = None,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Load no draft: propose n-grams of the text alone.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="Serve models/NAME alone, as `scripts/setup --model NAME` fetches it.",
            metavar="NAME",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="How many new tokens at most.",
            show_default=f"{COMPLETION_TOKENS}, or what the settings allow",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[
        int | None, typer.Option(help="Repeats a sampled text.", show_default="a fresh one")
    ] = None,
) -> None:
    """Stream a completion from CARD on a real Triton server, or serve."""
    errors = Console(stderr=True)
    serves = serve or openai
    if serves and prompt is not None:
        refuse("a server is asked by its clients: leave out the prompt, or --serve and --openai")
    try:
        chosen = {} if model is None else {"target": {"path": _fetched(model)}}
        without = {"draft": None} if no_draft or model is not None else {}
        loaded = load_settings(settings, **chosen, **without)
    except SettingsError as error:
        refuse(error)
    serving = loaded.serving
    ports = {
        "http_port": http_port or serving.http_port,
        "grpc_port": grpc_port or serving.grpc_port,
        "metrics_port": metrics_port or serving.metrics_port,
    }
    # No probe asks for a demonstration's health; of two that start at once, both would find 8003
    # free.
    wanted = serving.health_port if serves else 0
    ports["health_port"] = health_port or _free_port(wanted, serving.address)
    options = {f"--{name.replace('_', '-')}": port for name, port in ports.items()}
    if openai:
        options["--openai-port"] = openai_port
    if problem := check_ports(options, serving.address):
        refuse(problem)
    serving = serving.model_copy(update=ports)
    loaded = loaded.model_copy(update={"serving": serving})
    try:
        asked = None if serves else prompt_of(loaded, prompt, raw=raw, system=system)
    except (CardError, ChatTemplateError) as error:
        refuse(error)
    question = None
    if asked is not None:
        if max_tokens is None:
            max_tokens = allowed_tokens(loaded, asked.read, COMPLETION_TOKENS)
        request = GenerateRequest(
            asked.read,
            max_tokens,
            temperature=temperature,
            seed=secrets.randbits(32) if seed is None and temperature > 0 else seed,
            return_num_output_tokens=True,
            return_perf_metrics=True,
        )
        question = request, asked.shown
    with tempfile.TemporaryFile() as log:
        gateway = GatewayProcess(serving, loaded.target.path, openai_port) if openai else None
        try:
            asyncio.run(
                _with_server(loaded, settings, question, errors, None if serves else log, gateway)
            )
        except Interrupted:
            raise typer.Exit(0 if serves else INTERRUPTED) from None
        except ProcessEndedError as error:
            # The log of a server that is kept is on the terminal.
            print(f"error: {error}" if serves else last_words(log), file=sys.stderr)
            raise typer.Exit(REFUSED if error.code == REFUSED else 1) from None
        except CardError as error:
            errors.print(f"error: {error}", style="red", highlight=False, markup=False)
            if told := complaints(log):  # which goes with the server
                print(told, file=sys.stderr)
            raise typer.Exit(1) from None


async def _with_server(
    settings: Settings,
    settings_file: Path | None,
    question: tuple[GenerateRequest, str] | None,
    errors: Console,
    log: IO[bytes] | None,
    gateway: GatewayProcess | None,
) -> None:
    """Start the server, demonstrate with a question (and what a person typed of it) or serve
    without, and stop it whatever happens.

    Raises `Interrupted`, `ProcessEndedError` and `CardError`.
    """
    serving = settings.serving
    interrupted = asyncio.Event()
    stopping = False

    def interrupt() -> None:
        interrupted.set()
        if stopping:  # asked twice: do not wait for open streams
            for child in children:
                child.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt)
    # A person who interrupts a demonstration does not wait for its text.
    variables = {} if question is None else {"CARD_SERVING__DRAIN_S": "0"}
    variables["CARD_TARGET__PATH"] = str(settings.target.path)
    if "draft" not in settings.roles:
        variables["CARD_SPECULATION__DRAFTER"] = settings.drafter
    server = SupervisedServer(serving, settings_file=settings_file, variables=variables)
    children: list[ChildProcess] = [server] if gateway is None else [server, gateway]
    name = "CARD" if "draft" in settings.roles else "n-grams"
    try:
        with errors.status("starting the server and loading its models (Ctrl-C stops it)"):
            for child in children:
                child.start(log)
                await _unless(interrupted, _ready(child))
        if question is None:
            _say_addresses(settings, server.host)
            if gateway is not None:
                print(f"OpenAI   {gateway.url}/v1\npage     {gateway.url}/")
                print(curl_line(gateway.url), flush=True)
            await _unless(interrupted, _watch(children))
        else:

            async def settled() -> None:
                with errors.status("waiting for the server's last decoders, then comparing"):
                    while not await asyncio.to_thread(server.is_settled):
                        await asyncio.sleep(LOOK_S)

            grpc = f"{server.host}:{serving.grpc_port}"
            await _unless(interrupted, compare(grpc, *question, name, settled))
    finally:
        stopping = True
        # Both let open answers finish, so both learn of the end at the same time.
        for child in reversed(children):
            child.stop()
        with errors.status("stopping the server"):
            for child in reversed(children):
                await asyncio.to_thread(child.wait)


async def _unless(interrupted: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result:
    """Do the work, or cancel it and raise `Interrupted` when that comes first."""
    working = asyncio.create_task(work)
    waiting = asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
            raise Interrupted
        return working.result()
    finally:
        waiting.cancel()


async def _ready(child: ChildProcess) -> None:
    while not await asyncio.to_thread(child.is_ready):
        await asyncio.sleep(LOOK_S)


async def _watch(children: Sequence[ChildProcess]) -> None:
    """Serve forever; raises `ProcessEndedError` when one ends."""
    while True:
        for child in children:
            child.check_alive()
        await asyncio.sleep(LOOK_S)


def _say_addresses(settings: Settings, host: str) -> None:
    serving = settings.serving
    print(f"gRPC     {host}:{serving.grpc_port}")
    print(f"HTTP     http://{host}:{serving.http_port}")
    print(f"metrics  http://{host}:{serving.metrics_port}/metrics")
    print(f"health   http://{host}:{serving.health_port}/ready")
    print("Ctrl-C stops the server. Try:")
    print(try_line(settings), flush=True)


def _free_port(wanted: int, address: str) -> int:
    """`wanted`, or any free port where that is 0 or busy; why there is none, `check_ports` says."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for port in (wanted, 0):
            with suppress(OSError):
                probe.bind((address, port))
                return int(probe.getsockname()[1])
    return wanted


def _fetched(model: str) -> Path:
    """The folder of a model that `scripts/setup --model` fetches."""
    folder = REPOSITORY_ROOT / "models" / model
    if not folder.is_dir():
        refuse(f"{folder} does not exist; fetch the model with: ./scripts/setup --model {model}")
    return folder
