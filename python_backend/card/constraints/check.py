"""Tests guides in a separate process, because a guide may take unlimited time or memory.

    python -m card.constraints.check MODEL SECONDS

Every line of standard input is a guide, `{"kind": ..., "text": ...}`. The answer to each is a line,
`{"problem": ...}`: what is wrong with the guide, or null. The first line answers for the model. A
guide that takes more than SECONDS of processor time ends the process by SIGPROF.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

from card.constraints.compiled import GuidedTokens
from card.constraints.guide import Guide, GuideError

_STACK_BYTES = 1 << 20
"""Stack of the compiling thread: smaller than the stacks of engines' threads, which compile only
guides that passed here. A grammar that is nested too deeply overflows it and ends the process."""
_MEMORY_BYTES = 4 << 30
"""Most address space of the process."""
_NICE = 5
"""Nice value of the process: running streams come before new guides."""


def _answer(model: Path, limit_s: float, lines: SimpleQueue[str]) -> None:
    try:
        _answer_each(model, limit_s, lines)
    finally:
        os._exit(1)  # `card`, which waits for an answer, sees the end


def _answer_each(model: Path, limit_s: float, lines: SimpleQueue[str]) -> None:
    try:
        tokens = GuidedTokens.load(model)
    except GuideError as error:
        _say(str(error))
        return
    _say(None)
    while True:
        guide = Guide(**json.loads(lines.get()))
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        problem = _problem(tokens, guide)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _say(problem)


def _problem(tokens: GuidedTokens, guide: Guide) -> str | None:
    try:
        tokens.compile(guide).rehearse()
    except GuideError as error:
        return str(error)
    return None


def _say(problem: str | None) -> None:
    print(json.dumps({"problem": problem}), flush=True)


def main(model: Path, limit_s: float) -> None:
    """Answer guides until standard input ends, even during a compilation."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(_STACK_BYTES)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_answer, args=(model, limit_s, lines), daemon=True).start()
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
