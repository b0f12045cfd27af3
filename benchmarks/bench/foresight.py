"""How often the draft, reading the target's text, would have picked the target's token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.contest import Completion
from bench.in_process import parameters_of
from bench.measurement import Task
from card.engines import Engine
from card.speculation.pacing import PLAIN
from planning.measuring import children_along
from training.ranks import Ranks


def read_along(draft: Engine, completions: Sequence[Completion]) -> dict[float, list[Ranks]]:
    """The draft's ranks of all texts that the target wrote alone, each once, by temperature."""
    ranks: dict[float, list[Ranks]] = {}
    read: set[Task] = set()
    for completion in completions:
        task, tokens = completion.task, completion.measurement.tokens
        alone = completion.contender.system == PLAIN
        if alone and tokens is not None and task not in read:
            read.add(task)
            ranks.setdefault(task.temperature, []).append(ranks_of(draft, task, tokens))
    return ranks


def ranks_of(draft: Engine, task: Task, tokens: tuple[int, ...]) -> Ranks:
    """Of every token that the target wrote, int64 [tokens]: 0 if it is the draft's choice, else 1.

    The very engine that drafts reads the very text that was measured, with the noise of its seed.
    """
    children = children_along(draft, task.prompt.tokens, tokens, parameters_of(task))
    return np.array(
        [int(below[0].token != token) for below, token in zip(children, tokens, strict=True)]
    )
