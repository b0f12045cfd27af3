"""vLLM's process: `python -m card.vllm SAID`, started by `card.vllm.process`.

Standard input brings one line of JSON with the settings, the role and the server's process id, then
a line each time that another pool is to be served. Its end is the end of this process. The
descriptor SAID takes one line of JSON when the model is loaded or cannot be, then a line every
`BEAT_S` while the loop makes progress.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Protocol

from card.cache import Pool
from card.decoding.from_settings import ngram_memory
from card.drafting import DraftLoop, make_drafters
from card.engines import EngineError
from card.engines.vocabulary import vocabulary_size
from card.serving.geometry import pool_geometry
from card.settings import Role, Settings
from card.vllm.chains import VllmChains
from card.vllm.engine import VllmEngine
from card.vllm.loop import VllmLoop
from card.vllm.process import BEAT_S

_IDLE_S = 0.1
_SHORTEST_S, _LONGEST_S, _GROWTH = 0.0002, 0.004, 1.1
"""Pauses without work: no slot in use, or slots of which none has work yet. These grow."""

log = logging.getLogger(__name__)


class Service:
    """Serves the pool of the server until standard input ends."""

    def __init__(self, settings: Settings, role: Role, server_pid: int, said: IO[str]) -> None:
        self._settings = settings
        self._role = role
        self._server_pid = server_pid
        self._said = said
        self._asked = threading.Event()
        self._serves = False
        self._progress_s = time.monotonic()
        vocabulary = vocabulary_size(settings.target.path)
        self._make_loop = (
            _draft(settings, vocabulary) if role == "draft" else _target(settings, vocabulary)
        )

    def run(self) -> None:
        for work in (self._beat, self._listen):
            threading.Thread(target=work, daemon=True).start()
        while True:
            self._asked.wait()
            self._asked.clear()
            self._serve()

    def _serve(self) -> None:
        """Step until another pool is to be served."""
        settings = self._settings
        pool = Pool.open(settings.cache.directory, self._server_pid, pool_geometry(settings))
        if pool is None:
            return
        loop = self._make_loop(pool)
        pause_s = _SHORTEST_S
        while not self._asked.is_set():
            self._progress_s = time.monotonic()
            self._serves = True
            rings = pool.slot_bell.rings
            if loop.step():
                pause_s = _SHORTEST_S
                continue
            rests = loop.is_idle or not pool.states.any()
            pool.slot_bell.wait(rings, _IDLE_S if rests else pause_s)
            pause_s = min(_GROWTH * pause_s, _LONGEST_S)
        self._serves = False
        loop.abandon()
        pool.close()

    def _beat(self) -> None:
        """Tell that this process lives, until a step takes too long."""
        settings = self._settings
        model = settings.draft if self._role == "draft" else settings.target
        limit_s = model.vllm.stall_timeout_s
        while not self._serves or time.monotonic() - self._progress_s <= limit_s:
            self._said.write("\n")
            self._said.flush()
            time.sleep(BEAT_S)
        log.critical("a step of vLLM took longer than %s.vllm.stall_timeout_s", self._role)
        os._exit(1)

    def _listen(self) -> None:
        for _ in sys.stdin:
            self._asked.set()
        os._exit(0)


class _Loop(Protocol):
    @property
    def is_idle(self) -> bool: ...
    def step(self) -> bool: ...
    def abandon(self) -> None: ...


def _target(settings: Settings, vocabulary: int) -> Callable[[Pool], _Loop]:
    ngrams, engine = ngram_memory(settings, vocabulary), VllmEngine(settings, vocabulary)
    return lambda pool: VllmLoop(engine, pool, settings, ngrams)


def _draft(settings: Settings, vocabulary: int) -> Callable[[Pool], _Loop]:
    drafters = make_drafters(VllmChains(settings, vocabulary), settings)
    return lambda pool: DraftLoop(drafters, pool, apart=settings.draft_is_apart)


def main() -> int:
    said = open(int(sys.argv[1]), "w", encoding="utf-8")  # noqa: SIM115
    logging.basicConfig(format="vllm: %(message)s")
    content = json.loads(sys.stdin.readline())
    try:
        service = Service(
            Settings(**content["settings"]), content["role"], content["server_pid"], said
        )
    except EngineError as error:
        print(json.dumps({"error": str(error)}), file=said, flush=True)
        return 1
    print(json.dumps({"loaded": True}), file=said, flush=True)
    service.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
