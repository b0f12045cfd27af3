"""How Triton's process watches the process of vLLM, which is a script here."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from card.cache import Pool
from card.engines import EngineError
from card.serving.geometry import pool_geometry
from card.settings import Settings
from card.vllm import process as module
from card.vllm.process import VllmProcess

LOADED = "say('{\"loaded\": true}\\n')"
Start = Callable[[str], VllmProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a target with a process that does what a script says."""
    started: list[VllmProcess] = []

    def begin(script: str) -> VllmProcess:
        python = tmp_path / "python"
        prelude = f"""\
            #!{sys.executable}
            import os, signal, sys, time
            def say(text): os.write(int(sys.argv[-1]), text.encode())
            sys.stdin.readline()
            """
        python.write_text(textwrap.dedent(prelude) + script, encoding="utf-8")
        python.chmod(0o700)
        target = {"engine": "vllm", "vllm": {"python": str(python)}}
        cache = {"slots": 1, "directory": str(tmp_path)}
        started.append(
            VllmProcess(Settings.model_validate({"target": target, "cache": cache}), "target", 1)
        )
        return started[-1]

    yield begin
    for one in started:
        with contextlib.suppress(OSError):  # closed by the test
            one.close()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    settings = Settings.model_validate({"cache": {"slots": 1, "directory": str(tmp_path)}})
    made = Pool.create(tmp_path, os.getpid(), pool_geometry(settings))
    yield made
    made.unlink()
    made.close()


def test_step_succeeds_while_the_process_beats(start: Start, pool: Pool) -> None:
    beating = start(f"{LOADED}\nfor line in sys.stdin: say('\\n' * 50)")
    loop = beating.make_loop(pool)
    assert loop.step()
    assert loop.step()


def test_process_when_the_model_cannot_be_loaded_gives_the_reason(start: Start) -> None:
    with pytest.raises(EngineError, match="no such model"):
        start('say(\'{"error": "no such model"}\\n\')')


@pytest.mark.parametrize("script", ["sys.exit(3)", f"{LOADED}\nsys.exit(3)"])
def test_end_of_the_process_is_an_error_when_it_loads_and_when_it_serves(
    start: Start, pool: Pool, script: str
) -> None:
    def serve() -> None:
        loop: Any = start(script).make_loop(pool)
        while True:
            loop.step()

    with pytest.raises(EngineError, match="vLLM's process ended with 3"):
        serve()


def test_silence_is_an_error(start: Start, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SILENT_S", 0.0)
    monkeypatch.setattr(module, "_LOOK_S", 0.001)
    loop = start(f"{LOADED}\nfor line in sys.stdin: pass").make_loop(pool)
    with pytest.raises(EngineError, match="has said nothing"):
        loop.step()


def test_process_ends_when_it_is_closed(start: Start) -> None:
    target = start(f"{LOADED}\nfor line in sys.stdin: pass")
    pid = target._process.pid
    target.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
