"""What does not fit is refused at the start: said by name, never ready, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_pair import PAIR
from running_service import get
from safetensors.torch import load_file, save_file

from card.cache.pool import pool_bytes
from card.serving.geometry import pool_geometry
from card.serving.supervision.processes import REGIONS
from card.serving.supervision.states import STUBS
from card.serving.triton_server import find_triton
from card.settings import load_settings
from loading.service import starting_service
from loading.supervised import SUPERVISOR, ProcessEndedError

END_S = 120.0
LOOK_S = 0.05
GIVEN_UP, REFUSED = 1, 2
"""Exit codes: the server did not come up; it was not even started."""


@dataclass(frozen=True)
class Ending:
    """How a start ended: exit code, everything it said, whether it was ready meanwhile."""

    code: int
    said: str
    was_ready: bool


def start(
    folder: Path, settings: Mapping[str, Mapping[str, Any]], *, prefix: Sequence[str] = ()
) -> Ending:
    """Start a supervisor and wait for its end; `prefix` is a program that becomes it."""
    directory, log, file = (folder / name for name in ("shared", "log", "settings.yaml"))
    directory.mkdir()
    models = {role: {"path": str(PAIR / role)} for role in ("target", "draft")}
    content = {**models, "cache": {"directory": str(directory)}, **settings}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    tokens, was_ready = set(), False
    command = (*prefix, *SUPERVISOR)
    with starting_service(load_settings(file), file, log, command=command) as service:
        process = service.server.process
        end_s = time.monotonic() + END_S
        while process.poll() is None and time.monotonic() < end_s:
            with contextlib.suppress(ProcessEndedError):
                was_ready = was_ready or service.server.is_ready()
            tokens |= {path.name.rpartition("_")[2] for path in directory.glob("card_run_*")}
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_S)
        process.kill()
    assert list(directory.iterdir()) == []
    assert [r for token in tokens for r in REGIONS.glob(f"*{token}*")] == []
    return Ending(process.returncode, log.read_text(errors="replace"), was_ready)


# --- models --------------------------------------------------------------------------------------


def test_weights_that_only_the_engine_can_judge_end_the_start(tmp_path: Path) -> None:
    model = tmp_path / "target"
    shutil.copytree(PAIR / "target", model)
    weights = model / "model.safetensors"
    tensors = load_file(weights)
    name = max(tensors)
    tensors[name][0] = float("nan")
    save_file(tensors, weights)
    ending = start(tmp_path, {"target": {"path": str(model)}})
    assert ending.code == GIVEN_UP
    (reason,) = (line for line in ending.said.splitlines() if line.startswith("error: "))
    assert reason.startswith(f"error: target cannot be loaded: {model}: {name} holds values")
    assert "gave_up" in ending.said.rstrip().splitlines()[-1]
    assert not ending.was_ready


HANGS = """
import time, typer
from card.serving import model_files, supervisor
model_files.check_model_files = lambda settings: time.sleep(3600)
typer.run(supervisor.main)
"""


def test_health_answers_and_sigterm_ends_it_when_reading_the_model_files_hangs(
    tmp_path: Path,
) -> None:
    file = tmp_path / "settings.yaml"
    models = {role: {"path": str(PAIR / role)} for role in ("target", "draft")}
    file.write_text(yaml.safe_dump(models), encoding="utf-8")
    command = [sys.executable, "-c", HANGS]
    with starting_service(load_settings(file), file, tmp_path / "log", command=command) as service:
        process, port = service.server.process, service.settings.serving.health_port
        limit_s = time.monotonic() + END_S
        while get(f"http://127.0.0.1:{port}/live")[0] != 200:
            assert time.monotonic() < limit_s, "nobody says that it starts"
            time.sleep(LOOK_S)
        status, told = get(f"http://127.0.0.1:{port}/ready")
        assert (status, json.loads(told)["state"]) == (503, "starting")
        process.terminate()
        assert process.wait(END_S) == 0


# --- the server ----------------------------------------------------------------------------------


def test_processes_that_end_at_once_end_the_start(tmp_path: Path) -> None:
    """As where the stub finds no libpython: it is gone before anybody can look at it."""
    (tmp_path / "staged").mkdir()
    wheel = find_triton(tmp_path / "staged")
    root = tmp_path / "server"
    shutil.copytree(wheel.backends, root / "backends", symlinks=True)
    stub = root / "backends/python/triton_python_backend_stub"
    stub.unlink()
    stub.write_text("#!/bin/sh\necho no libpython >&2\nexit 1\n")
    libraries = ":".join(map(str, wheel.library_paths))
    binary = root / "bin/tritonserver"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {wheel.binary} "$@"\n')
    for program in (stub, binary):
        program.chmod(0o755)
    ending = start(tmp_path, {"serving": {"tritonserver": str(binary)}})
    assert ending.code == GIVEN_UP
    assert "no libpython" in ending.said
    (reason,) = (line for line in ending.said.splitlines() if line.startswith("error: "))
    assert reason.startswith(f"error: the processes of {', '.join(STUBS)} ended as soon as")
    assert not ending.was_ready


# --- shared memory -------------------------------------------------------------------------------

POOL_BYTES = pool_bytes(pool_geometry(load_settings()))


def test_memory_that_is_gone_when_card_wants_it_ends_the_start(tmp_path: Path) -> None:
    """The check before the start passed; a limit on files' sizes stands for what came later."""
    most = POOL_BYTES - 4096
    ending = start(tmp_path, {}, prefix=["prlimit", f"--fsize={most}"])
    assert ending.code == GIVEN_UP
    assert "cannot create the cache pool under" in ending.said
    assert f"it needs {POOL_BYTES} writable bytes there" in ending.said
    assert not ending.was_ready


def _namespace() -> list[str]:
    """How a process gets mounts of its own on this machine; empty where it may not."""
    for command in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        probe = [*command, "mount", "-t", "tmpfs", "none", "/dev/shm"]
        try:
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return command
        except FileNotFoundError:
            return []
    return []


NAMESPACE = _namespace()


@pytest.mark.skipif(not NAMESPACE, reason="no mounts can be made here")
def test_shared_memory_that_is_read_only_is_refused(tmp_path: Path) -> None:
    read_only = 'mount -t tmpfs -o ro none /dev/shm && exec "$@"'
    ending = start(tmp_path, {}, prefix=[*NAMESPACE, "sh", "-c", read_only, "sh"])
    assert ending.code == REFUSED
    assert ending.said.startswith("error: shared memory /dev/shm ")
    assert not ending.was_ready


def test_a_model_that_does_not_fit_starts_no_server(tmp_path: Path) -> None:
    model = tmp_path / "target"
    shutil.copytree(PAIR / "target", model)
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    ending = start(tmp_path, {"target": {"path": str(model)}})
    assert ending.code == REFUSED
    assert ending.said.startswith("error: ")
    assert ending.said.count("\n") == 1
    assert str(model) in ending.said
    assert not ending.was_ready
