"""The order in which contenders take turns, and whether they write the same texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.measurement import Measurement, Task

System = Literal["autoregressive", "draft_then_verify", "card"]
Where = Literal["in_process", "grpc"]


@dataclass(frozen=True)
class Contender:
    """One system with one setting of what is swept.

    threads  of the model that runs
    rows     most rows of one target pass
    gamma    draft passes before a verification (draft-then-verify)
    width    nodes that one draft pass expands
    """

    system: System
    where: Where
    threads: int
    rows: int
    gamma: int | None = None
    width: int | None = None
    complete: Callable[[Task], Measurement] = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Completion:
    """One text by one contender. `equal`: it is the text that the target wrote alone."""

    contender: Contender
    task: Task
    round: int
    measurement: Measurement
    equal: bool


def compete(
    contenders: Sequence[Contender],
    tasks: Sequence[Task],
    rounds: int,
    before_visit: Callable[[Task], None] = lambda task: None,
    on_completion: Callable[[], None] = lambda: None,
) -> list[Completion]:
    """Every contender writes every text in every round.

    All write a text before the next one is begun, so that noise hits all alike, and each visit
    begins with another contender, so that nobody always follows the same one. The reference is
    what the first contender, the target alone, wrote the first time.
    """
    references: dict[Task, Measurement] = {}
    completions: list[Completion] = []
    visit = 0
    for number in range(rounds):
        for task in tasks:
            before_visit(task)
            first = visit % len(contenders)
            found = {}
            for contender in (*contenders[first:], *contenders[:first]):
                found[contender] = contender.complete(task)
                on_completion()
            reference = references.setdefault(task, found[contenders[0]])
            for contender in contenders:
                written = found[contender]
                equal = written.writes_the_same_as(reference)
                completions.append(Completion(contender, task, number, written, equal))
            visit += 1
    return completions
