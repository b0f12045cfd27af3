"""vLLM's process: `python -m card.vllm SAID`, started by `card.vllm.target`.

Standard input brings one line of JSON with the settings and the server's process id, then a line
each time that another pool is to be served. Its end is the end of this process. The descriptor SAID
takes one line of JSON when the model is loaded or cannot be, then a line every `BEAT_S` while the
loop makes progress.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from typing import IO

from card.cache import Pool
from card.decoding.from_settings import ngram_memory
from card.engines import EngineError
from card.engines.vocabulary import vocabulary_size
from card.serving.geometry import pool_geometry
from card.settings import Settings
from card.vllm.engine import VllmEngine
from card.vllm.loop import VllmLoop
from card.vllm.target import BEAT_S

_IDLE_S, _BUSY_S = 0.1, 0.004
"""Longest pauses without a slot in use, and with one."""

log = logging.getLogger(__name__)


class Service:
    """Serves the pool of the server until standard input ends."""

    def __init__(self, settings: Settings, server_pid: int, said: IO[str]) -> None:
        self._settings = settings
        self._server_pid = server_pid
        self._said = said
        self._asked = threading.Event()
        self._serves = False
        self._progress_s = time.monotonic()
        vocabulary = vocabulary_size(settings.target.path)
        self._ngrams = ngram_memory(settings, vocabulary)
        self._engine = VllmEngine(settings, vocabulary)

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
        loop = VllmLoop(self._engine, pool, settings, self._ngrams)
        while not self._asked.is_set():
            self._progress_s = time.monotonic()
            self._serves = True
            rings = pool.slot_bell.rings
            if not loop.step():
                pool.slot_bell.wait(rings, _BUSY_S if pool.states.any() else _IDLE_S)
        self._serves = False
        loop.abandon()
        pool.close()

    def _beat(self) -> None:
        """Tell that this process lives, until a step takes too long."""
        limit_s = self._settings.target.vllm.stall_timeout_s
        while not self._serves or time.monotonic() - self._progress_s <= limit_s:
            self._said.write("\n")
            self._said.flush()
            time.sleep(BEAT_S)
        log.critical("a step of vLLM took longer than target.vllm.stall_timeout_s")
        os._exit(1)

    def _listen(self) -> None:
        for _ in sys.stdin:
            self._asked.set()
        os._exit(0)


def main() -> int:
    said = open(int(sys.argv[1]), "w", encoding="utf-8")  # noqa: SIM115
    logging.basicConfig(format="vllm: %(message)s")
    content = json.loads(sys.stdin.readline())
    try:
        service = Service(Settings(**content["settings"]), content["server_pid"], said)
    except EngineError as error:
        print(json.dumps({"error": str(error)}), file=said, flush=True)
        return 1
    print(json.dumps({"loaded": True}), file=said, flush=True)
    service.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
