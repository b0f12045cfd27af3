"""`bench turns`: how soon each turn of a chat begins, with its past kept and with it read again."""

from __future__ import annotations

import signal
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.conditions import this_machine
from bench.measurement import Task
from bench.options import SettingsFile
from bench.progress import shown
from bench.prompts import Prompt, check_room
from bench.terminal import DIFFER, INTERRUPTED, REFUSALS, make_console, refuse, warn_if_busy
from bench.through_grpc import ThroughGrpc, through_grpc
from card.serving.requests.vocabulary import Vocabulary
from card.settings import load_settings
from card_client import CardError
from card_gateway.template import read_model

QUESTIONS = (
    "How does a bicycle stay upright? Explain it in detail.",
    "Why is it harder when it is slow?",
    "Write a short story about a bicycle courier in the rain.",
    "What could the courier have done better?",
    "Sum all of this up in one sentence.",
)
"""What the person says, turn after turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. tokens: of the prompt; first_s: from the request to the first text."""

    tokens: int
    first_s: float
    text: str


class Chat:
    """Asks the same questions again and again."""

    def __init__(
        self,
        server: ThroughGrpc,
        write: Callable[[list[dict[str, str]]], Prompt],
        max_tokens: int,
    ) -> None:
        self._server = server
        self._write = write
        self._max_tokens = max_tokens

    def take_turns(self, salt: str) -> list[Turn]:
        """All turns of one chat. Raises `CardError`.

        salt  the chat begins behind what is kept with it; empty: behind nothing
        """
        messages: list[dict[str, str]] = []
        turns = []
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            prompt = self._write(messages)
            task = Task(prompt, 0.0, 0, self._max_tokens)
            told = self._server.complete(task, "card", salt=salt)
            messages.append({"role": "assistant", "content": told.text})
            turns.append(Turn(len(prompt.tokens), told.first_token_s, told.text))
        return turns


def turns(
    rounds: Annotated[int, typer.Option(min=1, help="Chats of each kind; medians count.")] = 5,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 128,
    settings_file: SettingsFile = None,
) -> None:
    """Measure the time to the first token of a chat's turns through gRPC, by turns with the text so
    far kept and read again."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine, console = this_machine(), make_console()
    warn_if_busy(console, machine)
    try:
        settings = load_settings(settings_file)
        tokenizer = Vocabulary.load(settings.target.path).tokenizer
        template, _ = read_model(settings.target.path)

        def write(messages: list[dict[str, str]]) -> Prompt:
            text = template.render(messages)
            prompt = Prompt("chat", text, tuple(tokenizer.encode(text).ids), is_chat=True)
            check_room([prompt], max_tokens, settings.limits)
            return prompt

        with ExitStack() as stack:
            with console.status("starting the server"):
                server = stack.enter_context(through_grpc(settings, settings_file))
            chat = Chat(server, write, max_tokens)
            chat.take_turns("warm-up")
            kept, afresh = _by_turns(console, chat, rounds)
    except (*REFUSALS, CardError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    _show(console, kept, afresh)
    if len({tuple(turn.text for turn in chat) for chat in (*kept, *afresh)}) > 1:
        print("error: chats with the same questions have other texts", file=sys.stderr)
        raise typer.Exit(DIFFER)


def _by_turns(
    console: Console, chat: Chat, rounds: int
) -> tuple[list[list[Turn]], list[list[Turn]]]:
    """So many chats behind what is kept of themselves, and behind nothing, in changing order."""
    kept, afresh = list[list[Turn]](), list[list[Turn]]()
    with shown(console, "chats", 2 * rounds) as advance:
        for number in range(rounds):
            pair = [(kept, f"chat {number}"), (afresh, "")]
            for found, salt in pair if number % 2 else pair[::-1]:
                found.append(chat.take_turns(salt))
                advance()
    return kept, afresh


def _show(console: Console, kept: list[list[Turn]], afresh: list[list[Turn]]) -> None:
    table = Table("turn", "prompt tokens", "read again ms", "kept ms", "ratio", title="First token")
    for number in range(len(QUESTIONS)):
        again_s, kept_s = (
            statistics.median(chat[number].first_s for chat in chats) for chats in (afresh, kept)
        )
        columns = [f"{again_s * 1e3:.0f}", f"{kept_s * 1e3:.0f}", f"{kept_s / again_s:.2f}"]
        table.add_row(str(number + 1), str(kept[0][number].tokens), *columns)
    console.print(table)
