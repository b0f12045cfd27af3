"""Which systems of the benchmark share a controller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast

from bench.contest import line_up_in_process
from bench.in_process import InProcess
from bench.measurement import Task
from bench.systems import SYSTEMS


class _Pair:
    """Notes which decodings run on each pool."""

    rows = 4
    settings = SimpleNamespace(target=SimpleNamespace(threads=1))

    def __init__(self) -> None:
        self.decodings: defaultdict[int, set[str]] = defaultdict(set)

    @contextmanager
    def beside(self, **_: Any) -> Iterator[SimpleNamespace]:
        pool = len(self.decodings)
        self.decodings[pool] = set()

        def complete(_: Task, decoding: str, **__: Any) -> None:
            self.decodings[pool].add(decoding)

        yield SimpleNamespace(complete=complete)


def test_line_up_when_a_system_adapts_gives_it_a_controller_of_its_own() -> None:
    pair = _Pair()
    systems = {name: SYSTEMS[name] for name in ("autoregressive", "card", "auto", "cacheback")}
    with ExitStack() as stack:
        for contender in line_up_in_process(stack, cast(InProcess, pair), systems):
            contender.complete(cast(Task, None))
    assert list(pair.decodings.values()) == [{"autoregressive", "card"}, {"auto"}, {"card"}]
