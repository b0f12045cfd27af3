"""The order in which contenders take turns, and whether they write the same texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from bench.measurement import Measurement, Task

Ours = Literal["autoregressive", "draft_then_verify", "pearl", "card_without_guesses", "card"]
Peer = Literal[
    "transformers",
    "transformers_assisted",
    "transformers_prompt_lookup",
    "openvino",
    "openvino_speculative",
]
System = Literal[Ours, "draft_alone", Peer]
"""`card_without_guesses` takes candidates from the cache alone, `draft_alone` is the draft model,
decoded autoregressively by our engine."""
Where = Literal["in_process", "grpc", "peer"]

OURS: tuple[str, ...] = get_args(Ours)
PEERS: tuple[str, ...] = get_args(Peer)


class ContenderError(RuntimeError):
    """A contender cannot go on; the message says why. The others can."""


@dataclass(frozen=True)
class Contender:
    """One system with one setting of what is swept.

    threads     of the model that runs
    rows        most rows of one target pass; where they adapt, those that a text begins with
    gamma       draft passes before a verification, or a peer's draft tokens; None: its own choice
    width       nodes that one draft pass expands
    rows_adapt  each pass takes as many rows as are worth it
    """

    system: System
    where: Where
    threads: int
    rows: int
    gamma: int | None = None
    width: int | None = None
    rows_adapt: bool = field(default=False, kw_only=True)
    complete: Callable[[Task], Measurement] = field(compare=False, repr=False, kw_only=True)

    @property
    def is_ours(self) -> bool:
        """Whether it must write the text of the target alone, bit for bit."""
        return self.system in OURS


@dataclass(frozen=True)
class Completion:
    """One text by one contender.

    equal          it is the text that the target wrote alone
    common_prefix  share of the tokens before the first that differs from that text; None where
                   tokens are not seen
    """

    contender: Contender
    task: Task
    round: int
    measurement: Measurement
    equal: bool
    common_prefix: float | None = None


def compete(
    contenders: Sequence[Contender],
    tasks: Sequence[Task],
    rounds: int,
    before_visit: Callable[[Task], None] = lambda task: None,
    on_completion: Callable[[], None] = lambda: None,
    *,
    on_failure: Callable[[Contender, ContenderError], None] | None = None,
    has_time: Callable[[], bool] = lambda: True,
) -> list[Completion]:
    """Every contender writes every text in every round.

    All write a text before the next one is begun, so that noise hits all alike, and each visit
    begins with another contender, so that nobody always follows the same one. The reference is
    what the first contender, the target alone, wrote the first time.

    on_failure  told of a contender that cannot go on, which then leaves; absent: the error is
                raised
    has_time    asked before each prompt but the first; no further one is begun without
    """
    contenders = list(contenders)
    references: dict[Task, Measurement] = {}
    completions: list[Completion] = []
    visit = 0
    for number in range(rounds):
        for place, task in enumerate(tasks):
            # All temperatures of a prompt, or none.
            begins = place == 0 or task.prompt != tasks[place - 1].prompt
            if visit and begins and not has_time():
                return completions
            before_visit(task)
            first = visit % len(contenders)
            found = {}
            for contender in (*contenders[first:], *contenders[:first]):
                try:
                    found[contender] = contender.complete(task)
                except ContenderError as error:
                    if on_failure is None:
                        raise
                    on_failure(contender, error)
                on_completion()
            reference = references.setdefault(task, found[contenders[0]])
            contenders = [contender for contender in contenders if contender in found]
            for contender in contenders:
                written = found[contender]
                equal = written.writes_the_same_as(reference)
                prefix = common_prefix(written, reference)
                completions.append(Completion(contender, task, number, written, equal, prefix))
            visit += 1
    return completions


def common_prefix(written: Measurement, reference: Measurement) -> float | None:
    """Share of the tokens before the first difference; None where tokens are not seen."""
    if written.tokens is None or reference.tokens is None:
        return None
    pairs = zip(written.tokens, reference.tokens, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), len(reference.tokens))
    return same / max(1, len(reference.tokens))
