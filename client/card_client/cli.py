"""`card-client generate | edge | chat | health`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from card_client.chat_template import ChatTemplate, Conversation
from card_client.client import CardClient
from card_client.display import Tally, TextPrinter
from card_client.edge import DEFAULT_AHEAD, LONGEST_CHAIN, TransformersModel, stream
from card_client.errors import CardError, invalid
from card_client.options import (
    CONNECTION,
    Connection,
    SystemOption,
    model_options,
    request_of,
    takes,
)
from card_client.wire import Delta, GenerateRequest

INTERRUPTED = 130
TELLS_NOTHING = ("UNIMPLEMENTED", "PERMISSION_DENIED", "NOT_FOUND")
"""Codes of servers that do not reveal the configuration of their models."""
FIGURES = ("return_num_output_tokens", "return_perf_metrics")
CHAT_HELP = (
    "Each line continues the conversation; end a line with \\ to go on in the next. "
    "/reset forgets it, /show prints it, /quit leaves. Ctrl-C stops an answer."
)

app = typer.Typer(
    help="Talk to CARD on Triton.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
@takes(*model_options(on=FIGURES), *CONNECTION)
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    **options: Any,
) -> None:
    """Complete a prompt, streaming the text to the terminal."""
    printer = TextPrinter(Console())
    tally = Tally()
    with _for_people():
        text = _standard_input() if prompt == "-" else prompt
        request = request_of(text, options)
        if request.exclude_input_in_output is not False or request.stream is not False:
            printer.prompt(text)
        try:
            asyncio.run(_answer(Connection.of(options), request, printer, tally))
        finally:
            printer.end()
    _say(tally.figures())


@app.command()
@takes(
    *model_options(without=("stream", "exclude_input_in_output", "drafter"), on=FIGURES),
    *CONNECTION,
)
def edge(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    draft: Annotated[
        Path, typer.Option(help="The model that drafts here: a Hugging Face directory.")
    ],
    ahead: Annotated[
        int, typer.Option(help="Tokens that it may be ahead of the text.", min=1, max=LONGEST_CHAIN)
    ] = DEFAULT_AHEAD,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Send so many at once (with --decoding draft_then_verify)."),
    ] = False,
    **options: Any,
) -> None:
    """Complete a prompt as `generate` does, drafting on this machine: the server verifies."""
    printer = TextPrinter(Console())
    with _for_people():
        text = _standard_input() if prompt == "-" else prompt
        request = request_of(text, options)
        connection = Connection.of(options)
        refusals: list[CardError] = []
        drafted = partial(
            stream,
            request=request,
            model=TransformersModel.load(draft),
            ahead=ahead,
            whole=whole,
            timeout_s=connection.timeout,
            on_refusal=refusals.append,
        )
        tally = Tally()
        printer.prompt(text)
        try:
            asyncio.run(_answer(connection, request, printer, tally, drafted))
        finally:
            printer.end()
    _say(tally.figures())
    for refusal in refusals:
        _say(f"the server refused most drafts of this device: {refusal}")


@app.command()
@takes(
    *model_options(without=("stream", "exclude_input_in_output"), on=FIGURES),
    *CONNECTION,
)
def chat(
    system: SystemOption = None,
    **options: Any,
) -> None:
    """Hold a conversation; the client keeps it and sends it whole each turn.

    It is written down by the chat template that the server tells. If the server tells none, it is a
    plain transcript, which a base model can continue.
    """
    printer = TextPrinter(Console())
    connection = Connection.of(options)
    with _for_people():
        conversation = asyncio.run(_conversation(connection, system))
    options["stop_words"] = [*(options["stop_words"] or []), *conversation.stop_words]
    _say(CHAT_HELP)
    for turn in _turns():
        if turn == "/quit":
            return
        if turn == "/reset":
            conversation.reset()
        elif turn == "/show":
            typer.echo(conversation.text)
        elif turn.startswith("/"):
            _say(CHAT_HELP)
        else:
            _take_turn(connection, conversation, turn, options, printer)


@app.command()
@takes(*CONNECTION)
def health(**options: Any) -> None:
    """Say whether a request would be answered now; exit with 1 if not."""
    connection = Connection.of(options)

    async def ask() -> bool:
        async with connection.client() as client:
            return await client.is_ready(timeout_s=connection.timeout)

    with _for_people():
        ready = asyncio.run(ask())
    typer.echo(f"{connection.url}: {'ready' if ready else 'not ready'}")
    if not ready:
        raise typer.Exit(1)


async def _answer(
    connection: Connection,
    request: GenerateRequest,
    printer: TextPrinter,
    tally: Tally,
    drafted: Callable[[CardClient], AsyncGenerator[Delta, None]] | None = None,
) -> None:
    """Prints and tallies one answer, streamed unless the request says otherwise.

    drafted  makes the stream where this machine drafts for it
    """
    async with connection.client() as client:
        if request.stream is False:
            completion = await client.generate(request, timeout_s=connection.timeout)
            tally.add(completion)
            printer.text(completion)
            return
        deltas = (
            drafted(client) if drafted else client.stream(request, timeout_s=connection.timeout)
        )
        async with aclosing(deltas):
            async for delta in deltas:
                tally.add(delta)
                printer.text(delta)


async def _conversation(connection: Connection, system: str | None) -> Conversation:
    """One by the template of the server's model, or plain if the server tells none."""
    template = None
    async with connection.client() as client:
        try:
            template = await client.chat_template(timeout_s=connection.timeout)
        except CardError as error:
            if error.code not in TELLS_NOTHING:
                raise
    if template is None:
        return Conversation(ChatTemplate.plain(), system or "")
    return Conversation(template, system)


def _take_turn(
    connection: Connection,
    conversation: Conversation,
    turn: str,
    options: dict[str, Any],
    printer: TextPrinter,
) -> None:
    """One turn of a chat. A refused one leaves the conversation unchanged, a stopped one keeps
    what was shown."""
    tally = Tally()
    try:
        prompt = conversation.prompt(turn)
        request = replace(request_of(prompt, options), exclude_input_in_output=True)
        asyncio.run(_answer(connection, request, printer, tally))
    except CardError as error:
        typer.echo()
        _say(f"error: {error}")
        return
    except KeyboardInterrupt:
        typer.echo()
        _say("stopped")
    else:
        typer.echo()
        _say(tally.figures())
    conversation.commit(turn, tally.text)


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise invalid(f"standard input is no text in {sys.stdin.encoding}: {error}") from error


def _turns() -> Iterator[str]:
    """The person's turns until the input ends or Ctrl-C; empty ones are passed over."""
    mark = "> " if sys.stdin.isatty() else ""
    try:
        while True:
            lines = [input(mark)]
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(input(mark))
            turn = "\n".join(lines)
            if turn.strip():
                yield turn
    except (EOFError, KeyboardInterrupt):
        return


@contextmanager
def _for_people() -> Iterator[None]:
    """Ends the command with one clear line when a request fails or Ctrl-C cancels it."""
    try:
        yield
    except CardError as error:
        _say(f"error: {error}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        _say("cancelled")
        raise typer.Exit(INTERRUPTED) from None


def _say(line: str) -> None:
    """Speaks beside the text: on standard error."""
    typer.echo(line, err=True)


if __name__ == "__main__":
    app()
