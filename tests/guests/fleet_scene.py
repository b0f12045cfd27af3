"""A fleet of two replicas of the pair of `tests/pair`, and conversations through its router."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families
from real_pair import PAIR

from fleet.conversation import Message, Turn, ask
from fleet.running import LOOK_S, Fleet, ReplicaProcess, fleet_of, running
from loading.supervised import open_local, reserved_ports

LIMIT_S = 240.0


@contextmanager
def running_fleet(folder: Path, policy: str = "cache_aware") -> Iterator[Fleet]:
    """Two replicas and the router; yields once all are ready."""
    settings = folder / "settings.yaml"
    content = {
        "target": {"path": str(PAIR / "target"), "threads": 1},
        "draft": {"path": str(PAIR / "draft"), "threads": 1},
        "cache": {"slots": 32, "kept_tokens": 32768},
        "serving": {"drain_s": 60},
        "speculation": {"rows": 8},
    }
    settings.write_text(yaml.safe_dump(content), encoding="utf-8")
    with reserved_ports(12) as ports:
        made = fleet_of(2, ports[0], ports[1:], folder, policy, settings)
        with running(made):
            yield made


def until(holds: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(LOOK_S)


def question(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def all_at_once(url: str, chats: Sequence[list[Message]], tokens: int) -> list[Turn]:
    with ThreadPoolExecutor(len(chats)) as pool:
        return list(pool.map(lambda chat: ask(url, chat, tokens), chats))


class Streams:
    """Streams that run while a test harms a replica."""

    def __init__(self, url: str, chats: Sequence[list[Message]], tokens: int) -> None:
        self._begun = threading.Semaphore(0)
        self._count = len(chats)
        self._pool = ThreadPoolExecutor(len(chats))
        self._turns = [
            self._pool.submit(ask, url, chat, tokens, lambda _: self._begun.release())
            for chat in chats
        ]

    def until_begun(self) -> None:
        """Every stream has had its first token."""
        for _ in range(self._count):
            assert self._begun.acquire(timeout=LIMIT_S)

    def ended(self) -> list[Turn]:
        with self._pool:
            return [turn.result() for turn in self._turns]


def told(replica: ReplicaProcess) -> dict[tuple[str, ...], float]:
    """The samples of a replica's `/metrics`: name and values of its labels but the model's."""
    with open_local(f"{replica.url}/metrics", LIMIT_S) as answer:
        page = answer.read().decode()
    return {
        (sample.name, *(value for name, value in sample.labels.items() if "model" not in name)): (
            sample.value
        )
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "le" not in sample.labels
    }
