"""The side of Triton's process, of target or draft: starts vLLM's process and watches it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from card.cache import Pool
from card.engines.guest.drafts import check_vocabulary
from card.engines.interface import EngineError
from card.engines.phases import phase
from card.serving.child import bound
from card.settings import REPOSITORY_ROOT, Role, Settings, without_settings
from card.settings.models import DraftSettings, TargetSettings

BEAT_S = 0.1
_SILENT_S = 5.0
"""vLLM's process is given up if it says nothing for so long."""
_LOOK_S = 0.2
_END_S = 5.0
_PIECE_BYTES = 1 << 16


VllmModel = TargetSettings | DraftSettings


def vllm_python(model: VllmModel) -> Path:
    """The Python that has vLLM. Raises `EngineError` if there is none."""
    named, ours = model.vllm.python, REPOSITORY_ROOT / ".venv-vllm/bin/python"
    if named is None:
        return ours if ours.exists() else Path(sys.prefix, "bin/python3")
    if not Path(named).exists():
        role = "target" if isinstance(model, TargetSettings) else "draft"
        raise EngineError(f"{role}.vllm.python: {named} does not exist; run scripts/setup --vllm")
    return Path(named)


def environment_of(model: VllmModel, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of vLLM's process: without what belongs to Triton's Python, and with what
    vLLM needs to stay in one process."""
    # The folders of this environment's libraries would replace those of vLLM's environment.
    libraries = [
        folder
        for folder in inherited.get("LD_LIBRARY_PATH", "").split(":")
        if folder and not folder.startswith(sys.prefix)
    ]
    kept = {
        name: value
        for name, value in without_settings(inherited).items()
        if name not in ("PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    }
    made = {
        **kept,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # Its ranks meet at this address. Several nodes need another one (`environment`).
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    if libraries:
        made["LD_LIBRARY_PATH"] = ":".join(libraries)
    if model.vllm.devices:
        made["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, model.vllm.devices))
    else:
        threads = str(model.threads)
        made |= {"OMP_NUM_THREADS": threads, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return made | model.vllm.environment


class VllmProcess:
    """A loaded model. Raises `EngineError` if vLLM cannot be started or refuses the model."""

    def __init__(self, settings: Settings, role: Role, server_pid: int) -> None:
        model = settings.draft if role == "draft" else settings.target
        if role == "draft":
            check_vocabulary(model.path, settings.target.path, "vLLM")
        python = vllm_python(model)
        self._heard, said = os.pipe()
        os.set_inheritable(said, True)
        self._process = subprocess.Popen(
            bound(signal.SIGKILL, [python, "-P", "-m", "card.vllm", str(said)], str(python)),
            stdin=subprocess.PIPE,
            pass_fds=[said],
            env=environment_of(model, os.environ),
            text=True,
        )
        os.close(said)
        self._tail = b""
        self._heard_s = time.monotonic()
        content = {"settings": settings.model_dump(mode="json"), "role": role}
        with phase("vllm", model.path):
            self._say(json.dumps({**content, "server_pid": server_pid}))
            self._await_load()

    def make_loop(self, pool: Pool) -> Watch:
        self._say("serve")
        return Watch(self)

    def close(self) -> None:
        """End vLLM's process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._heard)

    def hear(self) -> None:
        """Wait a moment for vLLM's process to say something. Raises `EngineError` if it has ended,
        or is silent for too long."""
        self._read()
        silence_s = time.monotonic() - self._heard_s
        if silence_s > _SILENT_S:
            raise EngineError(f"vLLM's process has said nothing for {silence_s:.0f} s")

    def _await_load(self) -> None:
        while b"\n" not in self._tail:
            self._read()
        line, _, self._tail = self._tail.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self.close()
            raise EngineError(answer["error"])

    def _read(self) -> None:
        if not select.select([self._heard], [], [], _LOOK_S)[0]:
            return
        piece = os.read(self._heard, _PIECE_BYTES)
        if not piece:
            code = self._process.wait()
            raise EngineError(f"vLLM's process ended with {code}; its messages stand above")
        self._heard_s = time.monotonic()
        self._tail = (self._tail + piece)[-_PIECE_BYTES:]

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            print(line, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise EngineError(
                f"vLLM's process ended with {self._process.wait()}; its messages stand above"
            ) from None


class Watch:
    """The loop of Triton's process: it watches the process that decodes."""

    is_idle = False

    def __init__(self, process: VllmProcess) -> None:
        self._process = process

    def step(self) -> bool:
        self._process.hear()
        return True
