"""What is sent, one row a kind, each with a harmless load of the same shape.

To add a kind, write what one client does once (`sends` where it is one request), then add a row.
Requests are written byte by byte, so that no library corrects them.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import string
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from hostile_bodies import BOMBS, LARGE, MODEL, made
from hostile_place import HURRIED_S, Place

Attack = Callable[[Place, random.Random], Awaitable[str]]
"""One client once; it returns the status of the answer, or a word for what happened."""

Make = Callable[[random.Random], bytes]
"""A request as it travels."""

_LATE_S = 2 * HURRIED_S
_LEAVES_S = 0.3
_ACCIDENTS = frozenset({"500", "late"})


@dataclass(frozen=True)
class Kind:
    """One kind of attack.

    harmless  what the same clients send to measure what the load alone costs
    clients   who attack at once, with `pause_s` between an answer and the next request
    allowed   the only outcomes that keep the promise; empty: all but `_ACCIDENTS`
    """

    name: str
    hostile: Attack
    harmless: Attack
    clients: int = 4
    pause_s: float = 0.25
    allowed: frozenset[str] = frozenset()

    def forbids(self, outcome: str) -> bool:
        """Whether an outcome breaks a promise; no kind forbids `unanswered`."""
        if outcome == "unanswered":
            return False
        return outcome not in self.allowed if self.allowed else outcome in _ACCIDENTS


# --- how an attacker speaks ----------------------------------------------------------------------


def http(path: str, body: Any = None, *, host: str = "127.0.0.1", **more: str) -> bytes:
    """A request; `body` is JSON or bytes, `more` a `method` and further headers."""
    content = (
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    )
    method = more.pop("method", "POST" if content else "GET")
    if content:
        more |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
    headers = {"Host": host, "Connection": "close"} | more
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def answer_to(host: str, port: int, request: bytes) -> str:
    """Send a request and read the answer to its end. Returns its status, or `closed`."""
    status = b""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            with suppress(OSError):  # an answer may come before the whole request is read
                writer.write(request)
                await writer.drain()
            status = await reader.readline()
            while await reader.read(1 << 16):
                pass
        finally:
            writer.transport.abort()
    return status.split()[1].decode() if b" " in status else "closed"


def sends(make: Make) -> Attack:
    """An attack that sends what `make` draws and reads the answer."""
    return lambda place, draw: answer_to(place.host, place.gateway, make(draw))


def completion(**fields: Any) -> bytes:
    """A short completion."""
    return http("/v1/completions", {"model": MODEL, "prompt": "Say: ", "max_tokens": 8, **fields})


# --- guides --------------------------------------------------------------------------------------


def _letters(draw: random.Random, count: int) -> str:
    return "".join(draw.choices(string.ascii_lowercase + " ", k=count))


def _guided(draw: random.Random, **guide: Any) -> bytes:
    return completion(max_tokens=256, temperature=1, seed=draw.getrandbits(32), **guide)


def _ambiguous(draw: random.Random) -> bytes:
    own = _letters(draw, 2)
    rule = draw.choice([f's s | "a" | "b" | " " | "{own}"', f"s s s | s s | /[a-z]+/ | /{own} /"])
    return _guided(draw, guided_grammar=f"start: s\ns: {rule}")


def _ordinary(draw: random.Random) -> bytes:
    return _guided(draw, guided_regex=f"([a-z]{{1,9}} ){{200}}{_letters(draw, 2)}")


def _choice(size: int) -> Make:
    return lambda draw: _guided(draw, guided_choice=[_letters(draw, size)])


def _lexemes(draw: random.Random) -> bytes:
    """A grammar of 300 expressions that overlap, new each time."""
    names, own = [f"T{n}" for n in range(300)], _letters(draw, 9)
    rules = [
        f"{name}: /[a-z ]*{chr(97 + n % 26)}{chr(97 + n // 26)}[a-z ]{{{n % 40}}}{own}/"
        for n, name in enumerate(names)
    ]
    return completion(guided_grammar="\n".join([f"start: ({' | '.join(names)})*", *rules]))


def _small_grammar(draw: random.Random) -> bytes:
    return completion(guided_grammar=f'start: "yes" | "no" | "{_letters(draw, 9)}"')


def _leaving(make: Make) -> Attack:
    """Send, and leave before the answer."""

    async def attack(place: Place, draw: random.Random) -> str:
        request = answer_to(place.host, place.gateway, make(draw))
        try:
            return await asyncio.wait_for(request, _LEAVES_S)
        except asyncio.TimeoutError:
            return "left"

    return attack


# --- requests ------------------------------------------------------------------------------------


def _invented(draw: random.Random) -> bytes:
    name = f"X{draw.getrandbits(40):x}" + "A" * draw.choice([0, 2000])
    prompt = {"model": MODEL, "prompt": "x"}
    return draw.choice(
        [
            http("/v1/models", method=name),
            http(f"/{name}"),
            http(f"/v1/models/{name}"),
            http("/v1/models", host=f"{name[:60]}.example"),
            http("/v1/models", **{name: name}),
            http("/v1/completions", prompt | {"model": name}),
            http("/v1/completions", prompt | {name: 1}),
            http("/v1/completions", prompt | {"drafter": name}),
        ]
    )


def _models(_: random.Random) -> bytes:
    return http("/v1/models")


def _absolute(_: random.Random) -> bytes:
    return http("http://127.0.0.1/v1/models")


def _foreign(draw: random.Random) -> bytes:
    host = draw.choice(["evil.example", "evil.example:9000", "127.0.0.1.evil.example", "10.1.2.3"])
    return draw.choice(
        [http("/v1/models", host=host), completion().replace(b"127.0.0.1", host.encode())]
    )


def _each(names: Iterable[str]) -> Make:
    """One body after the other, so that a window sends as many different ones as it can."""
    turns = cycle(names)

    def make(_: random.Random) -> bytes:
        path, body = made(next(turns))
        return http(path, body)

    return make


def _chat(_: random.Random) -> bytes:
    messages = [{"role": "user", "content": "Hello."}]
    return http("/v1/chat/completions", {"model": MODEL, "max_tokens": 1, "messages": messages})


def _texts(count: int, tokens: int) -> Attack:
    """Several texts in one request, of a gateway that ends an answer after `HURRIED_S`."""
    request = completion(n=count, max_tokens=tokens, ignore_eos=True, temperature=1)

    async def attack(place: Place, _: random.Random) -> str:
        began_s = time.monotonic()
        status = await answer_to(place.host, place.hurried or place.gateway, request)
        return "late" if place.hurried and time.monotonic() - began_s > _LATE_S else status

    return attack


# --- connections ---------------------------------------------------------------------------------


def _long(_: random.Random) -> bytes:
    return completion(max_tokens=192, ignore_eos=True, stream=True)


def _stalling(pieces: Callable[[random.Random], tuple[bytes, bytes]], pause_s: float) -> Attack:
    """Send the first piece, then the second a byte at a time, and read nothing."""

    async def attack(place: Place, draw: random.Random) -> str:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(place.host, place.gateway, limit=1)
            try:
                first, second = pieces(draw)
                writer.write(first)
                for byte in second:
                    await asyncio.sleep(pause_s)
                    writer.write(bytes([byte]))
                    await writer.drain()
                await asyncio.sleep(20 * pause_s)
                return "stalled"
            finally:
                writer.transport.abort()
        return "ended by the server"

    return attack


def _slow(draw: random.Random) -> tuple[bytes, bytes]:
    """Slow headers, a slow body, or a stream that is not read."""
    whole = _long(draw)
    at = draw.choice([20, len(whole) - 20, len(whole)])
    return whole[:at], whole[at:]


KINDS = (
    Kind("ambiguous grammars", sends(_ambiguous), sends(_ordinary)),
    Kind("choices of 60 kB", sends(_choice(60_000)), sends(_choice(600))),
    Kind("lexer bombs", sends(_lexemes), sends(_small_grammar)),
    Kind("leaving the queue", _leaving(_lexemes), _leaving(_small_grammar), 16, 1.0),
    Kind("inventions", sends(_invented), sends(_models), 4, 0.02),
    Kind("large bodies", sends(_each(LARGE)), sends(_chat)),
    Kind("bombs in JSON", sends(_each(BOMBS)), sends(_chat)),
    Kind("texts times tokens", _texts(64, 1000), _texts(4, 32), 2),
    Kind("silent connections", _stalling(lambda _: (b"", b""), 1.0), sends(_models), 1_030, 5.0),
    Kind("slow clients", _stalling(_slow, 0.2), sends(_long)),
    Kind("absolute-form", sends(_absolute), sends(_models), allowed=frozenset({"200"})),
    Kind(
        "foreign hosts", sends(_foreign), sends(_models), allowed=frozenset({"400", "403", "421"})
    ),
)


def attack(name: str, hostile: bool, place: Place, seconds: float, seed: int) -> Counter[str]:
    """Send one kind, or its harmless load, for so long, from this process; what came back. A client
    that still waits at the end is cut off: `unanswered`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    (kind,) = (kind for kind in KINDS if kind.name == name)
    return asyncio.run(_window(kind, hostile, place, seconds, seed))


async def _window(
    kind: Kind, hostile: bool, place: Place, seconds: float, seed: int
) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    act, count = (kind.hostile, kind.clients) if hostile else (kind.harmless, min(kind.clients, 64))

    async def client(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        await asyncio.sleep(draw.uniform(0, kind.pause_s))
        while True:
            outcomes["unanswered"] += 1
            outcome = await act(place, draw)
            outcomes["unanswered"] -= 1
            outcomes[outcome] += 1
            await asyncio.sleep(kind.pause_s)

    tasks = [asyncio.create_task(client(number)) for number in range(count)]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    return +outcomes
