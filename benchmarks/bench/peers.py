"""Peers, which a user could run instead: each has its own environment and process.

A peer's worker (`benchmarks/peers`) loads both models once and answers one prompt at a time, so
that it takes turns with our own systems. It gets token ids and gives token ids back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
from tokenizers import Tokenizer

from bench.in_process import InProcess, text_of
from bench.measurement import Measurement, Task
from bench.runner import Contender, ContenderError
from card.cores import usable_cores
from card.engines.processor import resolve_dtype
from card.settings import REPOSITORY_ROOT
from environments import QUIETLY, EnvironmentFailedError, installed, last_lines, run

_REQUIREMENTS = REPOSITORY_ROOT / "requirements"
_ANSWER_S = 300.0


class PeerError(ContenderError):
    """A peer cannot be installed, converted or run; one line says why."""


@dataclass(frozen=True)
class Mode:
    """One way to run a peer. `assistant_tokens`: draft tokens; None: it drafts none."""

    system: str
    mode: str
    assistant_tokens: int | None = None


@dataclass(frozen=True)
class Peer:
    """How a peer is installed and what of it competes.

    requirements  files that are installed with their dependencies; none: it runs in our environment
    bare          files that are installed without dependencies
    converts      its converter, a script, makes both models readable for it; otherwise it reads a
                  target in GGUF alone
    scripts       the folder of its worker and its converter
    home          where environments are installed and converted models are kept
    """

    name: str
    requirements: Sequence[str]
    modes: Sequence[Mode]
    bare: Sequence[str] = ()
    converts: bool = False
    scripts: Path = REPOSITORY_ROOT / "benchmarks" / "peers"
    home: Path = REPOSITORY_ROOT / ".peers"


_LLAMA_CPP = Peer(
    "llama_cpp",
    ["peers-llama_cpp.txt"],
    [
        Mode("llama_cpp", "generate"),
        *(Mode("llama_cpp_prompt_lookup", "prompt_lookup", tokens) for tokens in (3, 10)),
    ],
)
_OPENVINO = Peer(
    "openvino",
    ["peers-openvino.txt"],
    [
        Mode("openvino", "generate"),
        *(Mode("openvino_speculative", "speculative", tokens) for tokens in (2, 3, 5, 8)),
    ],
    bare=["peers-openvino-converter.txt"],
    converts=True,
)
PEERS = {peer.name: peer for peer in (_LLAMA_CPP, _OPENVINO)}


@contextmanager
def line_up_peer(peer: Peer, pair: InProcess, tokenizer: Tokenizer) -> Iterator[list[Contender]]:
    """Install, convert and start a peer. Raises `PeerError`."""
    target, draft = pair.settings.target.path, pair.settings.draft.path
    if not peer.converts and target.suffix != ".gguf":
        raise PeerError(f"{peer.name} runs GGUF files, and this target is another model")
    python = install(peer)
    models = [target, draft]
    if peer.converts:
        models = [convert(peer, python, model, target) for model in models]
    exact = resolve_dtype(pair.settings.target.dtype) == "float32"
    dtype = "float32" if exact else "bfloat16"
    worker = start(peer, python, models, dtype, pair.settings.limits.context_tokens)
    try:
        yield [_contender(worker, mode, tokenizer) for mode in peer.modes]
    finally:
        worker.stop()


def start(peer: Peer, python: Path, models: Sequence[Path], dtype: str, context: int) -> Worker:
    """A worker that has loaded its models: the target and the draft. Raises `PeerError`."""
    target, draft = map(str, models)
    return Worker(
        peer.name,
        [
            *(str(python), str(peer.scripts / f"{peer.name}_worker.py")),
            *("--target", target, "--draft", draft, "--dtype", dtype),
            *("--context", str(context), "--threads", str(usable_cores())),
        ],
    )


def _contender(worker: Worker, mode: Mode, tokenizer: Tokenizer) -> Contender:
    def complete(task: Task) -> Measurement:
        return worker.complete(task, mode, tokenizer)

    return Contender(mode.system, "peer", 1, mode.assistant_tokens, complete=complete)


class Worker:
    """A peer's process; one request at a time."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment` takes the place of this process's. Raises `PeerError`."""
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
            env=QUIETLY if environment is None else environment,
        )
        os.close(theirs)
        try:
            self._read()
        except PeerError:
            self.stop()
            raise

    def complete(self, task: Task, mode: Mode, tokenizer: Tokenizer) -> Measurement:
        """Raises `PeerError`."""
        answer = self.ask(task, mode)
        tokens = answer["tokens"]
        text, seconds = text_of(tokenizer, task, tokens), answer["seconds"]
        return Measurement(text, tuple(tokens), len(tokens), seconds, answer["first_token_s"])

    def ask(self, task: Task, mode: Mode) -> dict[str, Any]:
        """The answer to a request (`peers/answering.py`). Raises `PeerError`."""
        request = {
            "mode": mode.mode,
            "assistant_tokens": mode.assistant_tokens,
            "prompt": task.prompt.tokens,
            "max_tokens": task.max_tokens,
            "temperature": task.temperature,
            "seed": task.seed,
        }
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"{self._name}: the worker ended") from None
        answer = self._read()
        if "error" in answer:
            raise PeerError(f"{self._name} {mode.mode}: {answer['error']}")
        return answer

    @property
    def memory_mib(self) -> int:
        """Resident memory of the process, mapped files included."""
        return int(psutil.Process(self._process.pid).memory_info().rss) >> 20

    def _read(self) -> dict[str, Any]:
        # One whole line comes for each request, so nothing of the next is ever buffered.
        if not wait([self._answers.fileno()], _ANSWER_S):
            self._process.kill()
            raise PeerError(f"{self._name}: no answer within {_ANSWER_S:.0f} s")
        line = self._answers.readline()
        if not line:
            self._log.seek(0)
            said = last_lines(self._log.read().decode(errors="replace"))
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


def install(peer: Peer) -> Path:
    """The environment's interpreter. Raises `PeerError`."""
    if not peer.requirements:
        return Path(sys.executable)
    whole, bare = (
        [_REQUIREMENTS / name for name in names] for names in (peer.requirements, peer.bare)
    )
    try:
        return installed(peer.home / peer.name, whole, bare)
    except EnvironmentFailedError as error:
        raise PeerError(f"{peer.name} cannot be installed: {error}") from error


def convert(peer: Peer, python: Path, model: Path, target: Path) -> Path:
    """The converted model, named after the content it was made of."""
    script = peer.scripts / f"{peer.name}_convert.py"
    weights = [model / "config.json", *sorted(model.glob("*.safetensors"))]
    sources = [*([model] if model.is_file() else weights), script, *([target] * target.is_file())]
    content = sha256()
    for source in sources:
        content.update(source.read_bytes())
    converted = peer.home / "converted" / f"{model.stem}-{content.hexdigest()[:16]}"
    stamp = converted / "converted"
    if not stamp.is_file():
        try:
            run([str(python), str(script), str(model), str(converted), str(target)])
        except EnvironmentFailedError as error:
            what = f"{model.name} cannot be converted for {peer.name}"
            raise PeerError(f"{what}: {error}") from error
        stamp.touch()
    return converted
