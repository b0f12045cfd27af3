"""One model's recovery: killed, unloaded, loaded, seen well again."""

from __future__ import annotations

import time
from collections.abc import Callable

from card.serving.supervision.policy import ProcessState
from card.serving.supervision.repository import Repository, RepositoryError
from card.serving.supervision.residue import remove_region
from card.serving.supervision.server import TritonProcess
from card.serving.supervision.stubs import Stub, kill

_LOOK_S = 0.02


class RecoveryError(RuntimeError):
    """The model is not back; the message says at which step it failed."""


def reload_model(
    model: str,
    dead: Stub | None,
    server: TritonProcess,
    repository: Repository,
    is_well: Callable[[], bool],
    timeout_s: float,
) -> None:
    """Bring `model` back within `timeout_s`; runs in a thread of its own.

    `dead` is the last known process. It is killed first, whatever its state: a stopped process
    that goes on after a request was sent to it would abort the whole server. `is_well` tells
    whether the new one takes part in serving. Raises `RecoveryError`.
    """
    deadline = time.monotonic() + timeout_s
    try:
        if dead is not None:
            kill([dead.process])
        repository.unload(model, timeout_s)
        repository.load(model, timeout_s)
        while not is_well():
            if server.state is ProcessState.GONE:
                raise RecoveryError("the server ended")
            if time.monotonic() > deadline:
                raise RecoveryError(f"loaded, but not serving within {timeout_s:g} s")
            time.sleep(_LOOK_S)
    except (RepositoryError, TimeoutError) as error:
        raise RecoveryError(str(error)) from error
    finally:
        if dead is not None:
            remove_region(dead.region)
