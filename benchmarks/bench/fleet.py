"""`bench fleet`: conversations over several replicas, one policy of the router beside another."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from bench.chats import read_chats
from bench.conditions import where_and_when
from bench.report import store, table
from bench.terminal import PROMPTS, JsonFile, PromptsFile
from card.settings import load_settings
from fleet.conversation import Message, Turn, ask
from fleet.running import LOOK_S, PORTS, Fleet, Router, fleet_of, running
from loading.supervised import reserved_ports

POLICIES = ("cache_aware", "round_robin")
QUESTIONS = PROMPTS.with_name("questions.jsonl")
REPLICAS, TURNS = 2, 6
"""Replicas of the fleet, and turns of a conversation."""
OPENING_TEXTS = 6
"""Prompts in the first turn of a conversation; each later turn has one. A fifth turn then has a
history of more than 1,000 tokens."""
COLD_TURN = 5


@dataclass(frozen=True)
class Conversation:
    """cold  the turn `COLD_TURN` again, under another opening, so that nothing of it is kept"""

    turns: list[Turn]
    cold: Turn


def fleet(
    conversations: Annotated[int, typer.Option(min=1, help="Conversations of each policy.")] = 8,
    at_once: Annotated[int, typer.Option(min=1, help="Conversations at a time.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of a turn.")] = 128,
    first_port: Annotated[int, typer.Option(help="First port of the replicas.")] = 9100,
    prompts: PromptsFile = QUESTIONS,
    json_file: JsonFile = None,
) -> None:
    """Measure conversations over several replicas: cache_aware against round_robin."""
    load = os.getloadavg()[0]
    _, read = read_chats(load_settings().target.path, prompts)
    texts = [prompt.text for prompt in read]
    with tempfile.TemporaryDirectory() as name, reserved_ports(3) as ports:
        logs, of_replicas = Path(name), range(first_port, first_port + len(PORTS) * REPLICAS + 1)
        made = fleet_of(REPLICAS, ports[0], of_replicas, logs, POLICIES[0])
        urls, log = made.router.replicas, logs / "other-router.log"
        other = Router(urls, ports[1], ports[2], log, POLICIES[1])
        with running(made), running(Fleet([], other)):
            while not all(replica.is_settled() for replica in made.replicas):
                time.sleep(LOOK_S)
            routers = made.router, other
            found = _contest(routers, texts, conversations, at_once, max_tokens)
    told = {policy: _figures(result, seconds) for policy, (result, seconds) in found.items()}
    shown = _table(told)
    print(shown)
    if json_file is not None:
        asked = {"max_tokens": max_tokens, "at_once": at_once}
        store(json_file, {**where_and_when(load), **asked, "policies": told}, f"{shown}\n")


def _contest(
    routers: Sequence[Router],
    texts: Sequence[str],
    conversations: int,
    at_once: int,
    max_tokens: int,
) -> dict[str, tuple[list[Conversation], float]]:
    """By policy its conversations and the seconds that it took; the policies take turns, so that
    what else the machine does meets both."""
    found: dict[str, tuple[list[Conversation], float]] = {
        router.policy: ([], 0.0) for router in routers
    }
    for begin in range(0, conversations, at_once):
        numbers = range(begin, min(begin + at_once, conversations))
        for router in routers:
            before, spent_s = found[router.policy]
            began = time.monotonic()
            with ThreadPoolExecutor(at_once) as pool:
                done = [
                    pool.submit(_converse, router, number, texts, max_tokens) for number in numbers
                ]
                before += [one.result() for one in done]
            found[router.policy] = before, spent_s + time.monotonic() - began
    return found


def _converse(router: Router, number: int, texts: Sequence[str], max_tokens: int) -> Conversation:
    """One conversation; its first words are its own, so that no policy finds what another left."""
    messages: list[Message] = []
    turns: list[Turn] = []

    def answered(chat: Sequence[Message], tokens: int) -> Turn:
        turn = ask(router.url, chat, tokens)
        if turn.problem is not None:
            raise RuntimeError(f"a turn was not answered: {turn.problem}")
        return turn

    for place in range(TURNS):
        first = number * (TURNS + OPENING_TEXTS) + place + (OPENING_TEXTS if place else 0)
        count = 1 if place else OPENING_TEXTS
        text = "\n\n".join(texts[at % len(texts)] for at in range(first, first + count))
        opening = f"Conversation {number} by {router.policy}. " if not place else ""
        messages.append({"role": "user", "content": f"{opening}{text}"})
        turns.append(answered(messages, max_tokens))
        if place + 1 == COLD_TURN:
            begins = {"role": "user", "content": f"Cold. {messages[0]['content']}"}
            cold = answered([begins, *messages[1:]], 1)
        messages.append({"role": "assistant", "content": turns[-1].text})
    return Conversation(turns, cold)


def _figures(conversations: Sequence[Conversation], seconds: float) -> dict[str, Any]:
    """Medians by turn, and totals."""
    by_turn = list(zip(*(one.turns for one in conversations), strict=True))
    every = [turn for one in conversations for turn in one.turns]
    later = [turn for one in conversations for turn in one.turns[1:]]
    prompt = sum(turn.prompt_tokens for turn in later)
    cold = [one.cold.first_token_s for one in conversations]
    moves = [
        after.replica != before.replica
        for one in conversations
        for before, after in itertools.pairwise(one.turns)
    ]
    return {
        "conversations": len(conversations),
        "first_token_ms": [
            round(1e3 * median(turn.first_token_s for turn in turns), 1) for turns in by_turn
        ],
        "prompt_tokens": [round(median(turn.prompt_tokens for turn in turns)) for turns in by_turn],
        "cold_first_token_ms": round(1e3 * median(cold), 1),
        "tokens_per_s": round(sum(turn.completion_tokens for turn in every) / seconds, 1),
        "kept_share": round(sum(t.cached_tokens for t in later) / prompt, 3),
        "moved_turns": sum(moves),
        "turns_that_could_move": len(moves),
    }


def _table(told: dict[str, dict[str, Any]]) -> str:
    """The table in Markdown."""
    headings = ["policy", *(f"turn {place + 1}" for place in range(TURNS))]
    headings += [f"turn {COLD_TURN} cold", "tokens/s", "kept", "moved"]
    rows = []
    for policy, figures in told.items():
        rows.append([policy, *(f"{ms:.0f} ms" for ms in figures["first_token_ms"])])
        rows[-1] += [f"{figures['cold_first_token_ms']:.0f} ms", str(figures["tokens_per_s"])]
        rows[-1] += [f"{figures['kept_share']:.0%}"]
        rows[-1] += [f"{figures['moved_turns']} of {figures['turns_that_could_move']}"]
    prompt = next(iter(told.values()))["prompt_tokens"]
    rows.append(["tokens of the prompt", *map(str, prompt), "", "", "", ""])
    return "\n".join(table(headings, rows))
