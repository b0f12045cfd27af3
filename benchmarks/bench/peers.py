"""What a user would run instead: each peer in its own environment and process.

A peer's worker (`benchmarks/peers`) loads both models once and answers one prompt at a time, so
that it takes turns with our own systems. It is given token ids and gives token ids back.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from bench.contest import Contender, ContenderError, Peer
from bench.in_process import InProcess, text_of
from bench.measurement import Measurement, Task
from card.settings import REPOSITORY_ROOT

_REQUIREMENTS = REPOSITORY_ROOT / "requirements"
_START_S = 300.0
_ANSWER_S = 300.0
_TRIES = 2
_LAST_LINES = 3

Role = Literal["target", "draft"]


class PeerError(ContenderError):
    """A peer cannot be installed, converted or run; one line says why."""


@dataclass(frozen=True)
class Mode:
    """One way to run a peer. `assistant_tokens`: draft tokens (None: the peer's own choice)."""

    system: Peer
    mode: str
    assistant_tokens: int | None = None


@dataclass(frozen=True)
class Environment:
    """How a peer is installed and what of it competes.

    requirements  files installed with what they bring along; none at all: it runs as we do
    bare          files installed without
    converts      models that its converter, a script, makes readable for it
    gguf_only     whether it runs no other target than a GGUF file
    scripts       the folder of its worker and its converter
    home          where environments are installed and converted models are kept
    """

    name: str
    requirements: Sequence[str]
    modes: Sequence[Mode]
    bare: Sequence[str] = ()
    converts: Sequence[Role] = ()
    gguf_only: bool = False
    scripts: Path = REPOSITORY_ROOT / "benchmarks" / "peers"
    home: Path = REPOSITORY_ROOT / ".peers"


LLAMA_CPP = Environment(
    "llama_cpp",
    ["peers-llama_cpp.txt"],
    [
        Mode("llama_cpp", "generate"),
        *(Mode("llama_cpp_prompt_lookup", "prompt_lookup", tokens) for tokens in (3, 10)),
        *(Mode("llama_cpp_draft", "draft", tokens) for tokens in (2, 4, 8)),
    ],
    converts=["draft"],
    gguf_only=True,
)
OPENVINO = Environment(
    "openvino",
    ["peers-openvino.txt"],
    [
        Mode("openvino", "generate"),
        *(Mode("openvino_speculative", "speculative", tokens) for tokens in (2, 3, 5, 8)),
    ],
    bare=["peers-openvino-converter.txt"],
    converts=["target", "draft"],
)
ENVIRONMENTS = {peer.name: peer for peer in (LLAMA_CPP, OPENVINO)}


@contextmanager
def line_up_peer(
    environment: Environment, pair: InProcess, tokenizer: Tokenizer, threads: int
) -> Iterator[list[Contender]]:
    """Install, convert and start a peer. Raises `PeerError`."""
    settings = pair.settings
    models: dict[Role, Path] = {"target": settings.target.path, "draft": settings.draft.path}
    if environment.gguf_only and models["target"].suffix != ".gguf":
        raise PeerError(f"{environment.name} runs GGUF files, and this target is another model")
    python = _install(environment)
    given = models["target"]
    for role in environment.converts:
        models[role] = convert(environment, python, models[role], given)
    worker = _Worker(
        environment.name,
        [
            str(python),
            str(environment.scripts / f"{environment.name}_worker.py"),
            *("--target", str(models["target"]), "--draft", str(models["draft"])),
            *("--dtype", "float32" if pair.dtype == "float32" else "bfloat16"),
            *("--context", str(settings.limits.context_tokens), "--threads", str(threads)),
        ],
    )
    try:
        yield [_contender(worker, mode, tokenizer, threads) for mode in environment.modes]
    finally:
        worker.stop()


def _contender(worker: _Worker, mode: Mode, tokenizer: Tokenizer, threads: int) -> Contender:
    def complete(task: Task) -> Measurement:
        return worker.complete(task, mode, tokenizer)

    return Contender(
        mode.system, "peer", threads, rows=1, gamma=mode.assistant_tokens, complete=complete
    )


class _Worker:
    """A peer's process; one request at a time."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `stop`)
        answers, theirs = os.pipe()
        self._answers = os.fdopen(answers, "rb")
        self._process = subprocess.Popen(
            [*command, "--answers", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(theirs,),
            env=_unreported(),
        )
        os.close(theirs)
        try:
            self.versions: dict[str, str] = self._read(_START_S)["ready"]
        except PeerError:
            self.stop()
            raise

    def complete(self, task: Task, mode: Mode, tokenizer: Tokenizer) -> Measurement:
        """Raises `PeerError` when the peer fails at a text twice."""
        request = {
            "mode": mode.mode,
            "assistant_tokens": mode.assistant_tokens,
            "prompt": task.prompt.tokens,
            "max_tokens": task.max_tokens,
            "temperature": task.temperature,
            "seed": task.seed,
        }
        for _ in range(_TRIES):
            answer = self._ask(request)
            if "error" not in answer:
                break
        else:
            raise PeerError(f"{self._name} {mode.mode}: {answer['error']}")
        tokens = answer["tokens"]
        return Measurement(
            text=text_of(tokenizer, task, tokens),
            tokens=tuple(tokens),
            generated=len(tokens),
            seconds=answer["seconds"],
            first_token_s=answer["first_token_s"],
            steps=len(tokens),  # what a peer accepts is not seen
        )

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"{self._name}: the worker ended") from None
        return self._read(_ANSWER_S)

    def _read(self, timeout_s: float) -> dict[str, Any]:
        # Whole lines come one per request, so nothing of the next is ever buffered.
        if not wait([self._answers.fileno()], timeout_s):
            self._process.kill()
            raise PeerError(f"{self._name}: no answer within {timeout_s:.0f} s")
        line = self._answers.readline()
        if not line:
            self._log.seek(0)
            said = _last_lines(self._log.read().decode(errors="replace"))
            raise PeerError(f"{self._name}: the worker ended: {said}")
        content: dict[str, Any] = json.loads(line)
        return content

    def stop(self) -> None:
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(_ANSWER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._answers.close()
        self._log.close()


def _install(environment: Environment) -> Path:
    """The environment's interpreter; made when its requirements have changed."""
    home = environment.home / environment.name
    python = home / "bin" / "python"
    files = [_REQUIREMENTS / name for name in (*environment.requirements, *environment.bare)]
    if not files:
        return Path(sys.executable)
    wanted = _digest([sys.version, str(home), *(file.read_text() for file in files)])
    stamp = home / "installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    what = f"{environment.name} cannot be installed"
    _run([sys.executable, "-m", "venv", "--clear", str(home)], what)
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--only-binary=:all:"]
    _run([*install, *_files(environment.requirements)], what)
    if environment.bare:
        _run([*install, "--no-deps", *_files(environment.bare)], what)
    stamp.write_text(wanted)
    return python


def _files(names: Sequence[str]) -> list[str]:
    return [part for name in names for part in ("--requirement", str(_REQUIREMENTS / name))]


def convert(environment: Environment, python: Path, model: Path, target: Path) -> Path:
    """The converted model, named after what it was made of."""
    script = environment.scripts / f"{environment.name}_convert.py"
    weights = [model / "config.json", *sorted(model.glob("*.safetensors"))]
    sources = [*([model] if model.is_file() else weights), script]
    content = hashlib.sha256()
    for file in (*sources, *([target] if target.is_file() else [])):
        content.update(file.read_bytes())
    converted = environment.home / "converted" / f"{model.stem}-{content.hexdigest()[:16]}"
    stamp = converted / "converted"
    if not stamp.is_file():
        what = f"{model.name} cannot be converted for {environment.name}"
        _run([str(python), str(script), str(model), str(converted), str(target)], what)
        stamp.touch()
    return converted


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_unreported())
    if done.returncode:
        raise PeerError(f"{what}: {_last_lines(done.stderr)}")


def _unreported() -> dict[str, str]:
    """Where OpenVINO tells nobody that it was imported."""
    return {**os.environ, "CI": "true"}


def _last_lines(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " ".join(lines[-_LAST_LINES:]) or "no reason given"


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
