"""NVIDIA's own ways to decode the same prompts: plain, and with its draft-target mode.

Each runs in a process of its own, for one that has imported the package keeps its devices:
``python -m trtllm.own_modes SETTINGS MODE END_ID``, the prompts' tokens as JSON on standard input.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.prompts import Prompt
from card.engines.interface import EngineError
from card.engines.tensorrt_llm.runtime import Runtime, import_tensorrt_llm
from card.settings import Settings, load_settings
from card.tensorrt_llm.loading import candidates_per_step, target_arguments
from trtllm.report import Speed

PLAIN, DRAFT_TARGET = "plain", "draft-target"

_LIMIT_S = 1800.0
_MARK = "own_modes: "
"""Begins the line that the answers are in: the package writes to standard output too."""


class OwnModeError(RuntimeError):
    """The mode did not run; the message says why."""


def measure(
    settings_file: Path, mode: str, prompts: list[Prompt], end_id: int
) -> tuple[Speed, list[list[int]]]:
    """Its speed and the tokens it wrote, greedy, one prompt after another. Raises
    `OwnModeError`."""
    command = [sys.executable, "-m", "trtllm.own_modes", str(settings_file), mode, str(end_id)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps([list(prompt.tokens) for prompt in prompts]),
            stdout=subprocess.PIPE,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OwnModeError(f"{mode}: not done after {_LIMIT_S:.0f} s") from error
    found = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not found:
        raise OwnModeError(f"{mode}: its process ended with exit code {done.returncode}; see above")
    answers = json.loads(found[-1].removeprefix(_MARK))
    speed = Speed(
        f"NVIDIA's own, {mode}",
        statistics.median(len(answer["tokens"]) / answer["seconds"] for answer in answers),
        statistics.median(answer["first_token_s"] for answer in answers),
    )
    return speed, [answer["tokens"] for answer in answers]


def _arguments(settings: Settings, mode: str, api: ModuleType) -> dict[str, Any]:
    """Of `tensorrt_llm.LLM`. Raises `EngineError`."""
    arguments = target_arguments(settings, api, None)
    if mode == DRAFT_TARGET:
        config = api.DraftTargetDecodingConfig
        # The field's name changed: introspect it instead of trusting a version number.
        names = [name for name in config.model_fields if name.startswith("speculative_model")]
        arguments["speculative_config"] = config(
            max_draft_len=candidates_per_step(settings), **{names[0]: str(settings.draft.path)}
        )
    return arguments


async def _answer(
    runtime: Runtime, prompt: list[int], end_id: int, max_tokens: int
) -> dict[str, Any]:
    greedy = {"max_tokens": max_tokens, "end_id": end_id, "pad_id": 0, "top_k": 1}
    first_token_s, tokens = 0.0, []
    started = time.perf_counter()
    async for result in runtime.generate(prompt, greedy):
        first_token_s = first_token_s or time.perf_counter() - started
        tokens = list(result.outputs[0].token_ids)
    seconds = time.perf_counter() - started
    return {"tokens": tokens, "seconds": seconds, "first_token_s": first_token_s}


def _run(settings_file: Path, mode: str, end_id: int) -> None:
    settings = load_settings(settings_file)
    prompts: list[list[int]] = json.load(sys.stdin)
    package = import_tensorrt_llm(settings.target.tensorrt_llm.devices)
    runtime = Runtime(package, _arguments(settings, mode, package.llmapi))
    limit = settings.limits.max_tokens
    runtime.run(_answer(runtime, prompts[0], end_id, limit))  # what the first one sets up
    answers = [runtime.run(_answer(runtime, prompt, end_id, limit)) for prompt in prompts]
    runtime.shutdown()
    print(_MARK + json.dumps(answers), flush=True)


if __name__ == "__main__":
    try:
        _run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    except (EngineError, AttributeError, ValueError) as error:
        sys.exit(f"own_modes: {error}")
