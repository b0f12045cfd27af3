"""vLLM as a peer: a process for each of its own ways, in the environment of CARD's target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

from tokenizers import Tokenizer

from bench.measurement import Measurement, Task
from bench.peers import Mode, PeerError, Worker
from bench.runner import Contender
from card.engines.interface import EngineError
from card.engines.processor import resolve_dtype
from card.settings import REPOSITORY_ROOT, Settings
from card.vllm.process import environment_of, vllm_python
from model_files.opening import is_gguf

ALONE = "vllm"
OWN_MODES = (ALONE, "ngram:3", "ngram:7", "draft_model:3", "suffix:7")
"""vLLM's own ways; a number is how many tokens it drafts."""
SYSTEMS = tuple(mode if mode == ALONE else f"{ALONE} {mode}" for mode in OWN_MODES)


def _worker(settings: Settings, mode: str, streams: int) -> Worker:
    """vLLM alone on the settings' target. Raises `PeerError`."""
    target = settings.target
    if is_gguf(target.path):
        raise PeerError(f"vllm {mode}: vLLM runs safetensors, and {target.path} is a GGUF file")
    try:
        python = vllm_python(target)
        dtype = "float32" if resolve_dtype(target.dtype) == "float32" else "bfloat16"
    except EngineError as error:
        raise PeerError(f"vllm {mode}: {error}") from error
    return Worker(
        f"vllm {mode}",
        [
            str(python),
            str(REPOSITORY_ROOT / "benchmarks/peers/vllm_worker.py"),
            *("--mode", mode, "--streams", str(streams)),
            *("--target", str(target.path), "--draft", str(settings.draft.path)),
            *("--dtype", dtype, "--context", str(settings.limits.context_tokens)),
            *("--threads", str(target.threads)),
        ],
        environment_of(target, os.environ),
    )


def line_up_vllm(
    stack: ExitStack,
    settings: Settings,
    tokenizer: Tokenizer,
    left_out: list[str],
    streams: int = 1,
) -> Iterator[Contender]:
    """vLLM's own ways that run here; `left_out` gets why the others do not.

    streams  how often a text is written at once
    """
    for mode, system in zip(OWN_MODES, SYSTEMS, strict=True):
        try:
            made = _worker(settings, mode, streams)
        except PeerError as error:
            left_out.append(str(error))
            continue
        stack.callback(made.stop)

        def complete(task: Task, made: Worker = made, mode: str = mode) -> Measurement:
            return made.complete(task, Mode(mode, "generate"), tokenizer)

        drafts = int(mode.partition(":")[2] or 0) or None
        yield Contender(system, "peer", 1, drafts, streams, complete=complete)
