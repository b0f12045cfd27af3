"""After many passes with few threads some have all, until every thread took part."""

from __future__ import annotations

from collections import Counter

from card.engines.openvino.threads import MOST_PASSES_WITH_ALL as ALL
from card.engines.openvino.threads import MOST_PASSES_WITH_FEW as FEW
from card.engines.openvino.threads import PassThreads, ThreadLimit


class Machine(ThreadLimit):
    """Keeps what it is told, and gives the other threads so much of each pass that has them."""

    def __init__(self, others_share: float = 0.0) -> None:
        self.others_share = others_share
        self.limits: list[int] = []
        self.now_s = self.others_s = 0.0

    def threads(self, most: int) -> PassThreads:
        return PassThreads(self, most, lambda: self.now_s, lambda: self.others_s)

    def set(self, threads: int) -> None:
        self.limits.append(threads)

    def infer(self) -> None:
        self.now_s += 0.004
        self.others_s += 0.004 * self.others_share

    def passes(self, threads: PassThreads, count: int, wanted: int = 1) -> Counter[int]:
        """How many of so many passes had so many threads."""
        self.limits.clear()
        for _ in range(count):
            threads.compute(wanted, self.infer, exactly=False)
        return Counter(self.limits)


def test_where_cores_are_busy_some_passes_try_and_then_many_do_not() -> None:
    machine = Machine(others_share=0.01)
    threads = machine.threads(2)
    assert machine.passes(threads, 2 * (FEW + ALL)) == {1: 2 * FEW, 2: 2 * ALL}


def test_who_wants_it_exactly_never_gets_more() -> None:
    machine = Machine()
    threads = machine.threads(2)
    for _ in range(FEW + ALL):
        threads.compute(1, machine.infer, exactly=True)
    assert set(machine.limits) == {1}
