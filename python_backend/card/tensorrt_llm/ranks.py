"""One answer for all tensor-parallel ranks: rank 0 asks the cache and tells the others.

Every rank schedules the same batch and must verify the same candidates, or shapes and collectives
diverge. Each rank has its own copy of the drafter, so the lists are broadcast: one collective per
hook call, in which every rank takes part. **This has not yet run on hardware.**
"""

from __future__ import annotations

from collections.abc import Callable

Answer = list[list[int]]


def shared_answer(ask: Callable[[], Answer]) -> Answer:
    """What rank 0 gets from `ask`, on every rank."""
    from tensorrt_llm._utils import mpi_broadcast, mpi_rank

    answer: Answer = mpi_broadcast(ask() if mpi_rank() == 0 else None, root=0)
    return answer
