"""`scripts/trtllm_check`: a service on TensorRT-LLM beside the engine's own modes.

The engine decodes the prompts by itself first, plainly and in its draft-target mode. Then this
repository serves them with the same settings, without candidates and with CARD. All texts are
greedy, so each must be the text of the engine's plain mode.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import aclosing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from bench.prompts import Prompt, read_prompts
from card.engines.interface import EngineError
from card.engines.tensorrt_llm.requests import NO_END_ID, installed_version
from card.engines.tensorrt_llm.runtime import Runtime, import_tensorrt_llm
from card.engines.vocabulary import vocabulary_size
from card.settings import REPOSITORY_ROOT, Settings, SettingsError, load_settings
from card.tensorrt_llm.loading import candidates_per_step, target_arguments
from card_client import CardClient, CardError, GenerateRequest
from card_client.display import Tally
from loading.service import running_service
from loading.supervised import ProcessEndedError, last_words
from model_files import ModelFilesError, model_files_of
from model_files.end_ids import end_ids
from refusal import refuse

FAILED = 1
PLAIN, DRAFT_TARGET = "TensorRT-LLM, plain", "TensorRT-LLM, draft-target"
SERVED = {"autoregressive": "CARD's service, autoregressive", "card": "CARD's service, card"}
_PROMPTS = REPOSITORY_ROOT / "benchmarks/prompts.jsonl"
_ANSWER_S = 300.0

console = Console(highlight=False, markup=False, soft_wrap=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Answer:
    """One text; `accepted` are tokens of it that were candidates."""

    text: str
    tokens_per_s: float
    first_token_s: float
    accepted: int = 0


@app.command()
def check(
    settings: Annotated[
        Path, typer.Argument(help="Settings file of a service with `engine: tensorrt_llm`.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="New tokens after each.")] = 128,
) -> None:
    """Compare this repository's service with TensorRT-LLM's own modes: texts and speeds.

    Exit code 0: every text is the engine's own and candidates were accepted, 1: not so, or
    something but draft-target did not run, 2: nothing was begun.
    """
    try:
        version = installed_version()
        values = load_settings(settings)
        if (engine := values.engine_of(values.target)) != "tensorrt_llm":
            refuse(f"{settings}: target.engine must be tensorrt_llm (got {engine})")
        tokenizer = model_files_of(values.target.path).tokenizer()
    except (EngineError, ModelFilesError, SettingsError) as error:
        refuse(error)
    most = min(values.limits.prompt_tokens, values.limits.context_tokens - max_tokens)
    found = [prompt for prompt in read_prompts(_PROMPTS, tokenizer) if len(prompt.tokens) <= most]
    prompts = found[:limit]
    if not prompts or max_tokens > values.limits.max_tokens:
        refuse(
            f"{settings}: its limits allow no prompt with {max_tokens} new tokens; raise "
            "limits.max_tokens and limits.context_tokens, or give less --max-tokens"
        )
    console.print(f"TensorRT-LLM {version}: {values.target.path} with {values.draft.path}")
    answers: dict[str, list[Answer]] = {}
    for mode in (PLAIN, DRAFT_TARGET):
        try:
            # One process a mode: a process that has imported the package keeps its devices.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
                answers[mode] = apart.submit(own, settings, mode, prompts, max_tokens).result()
        except (EngineError, AttributeError, ValueError, BrokenProcessPool) as error:
            console.print(f"{mode} did not run: {error!r}")
    answers |= _served(values, settings, prompts, max_tokens)
    console.print(_table(answers, prompts))
    wrong = _wrong(answers)
    console.print(f"FAIL: {'; '.join(wrong)}" if wrong else "PASS: all texts are the engine's own")
    raise typer.Exit(FAILED if wrong else 0)


# --- the engine alone, in a process of its own ----------------------------------------------------


def own(file: Path, mode: str, prompts: Sequence[Prompt], max_tokens: int) -> list[Answer]:
    """The target by itself, one prompt after another. Raises `EngineError`, and what a version
    without this mode raises."""
    settings = load_settings(file)
    files = model_files_of(settings.target.path)
    tokenizer = files.tokenizer()
    ends = end_ids(files, vocabulary_size(settings.target.path), tokenizer) or (NO_END_ID,)
    greedy = {"max_tokens": max_tokens, "end_id": ends[0], "stop_token_ids": list(ends[1:])}
    package = import_tensorrt_llm(settings.target.tensorrt_llm.devices)
    arguments = target_arguments(settings, package.llmapi, None)
    if mode == DRAFT_TARGET:
        config = package.llmapi.DraftTargetDecodingConfig
        # The name of the field has changed between versions.
        (model, *_) = (it for it in config.model_fields if it.startswith("speculative_model"))
        arguments["speculative_config"] = config(
            max_draft_len=candidates_per_step(settings), **{model: str(settings.draft.path)}
        )
    runtime = Runtime(package, arguments)

    async def answer(prompt: Prompt) -> Answer:
        started, first_s, tokens = time.perf_counter(), 0.0, []
        request = runtime.generate(list(prompt.tokens), greedy | {"pad_id": 0, "top_k": 1})
        async for result in request:
            first_s = first_s or time.perf_counter() - started
            tokens = list(result.outputs[0].token_ids)
        rate = len(tokens) / (time.perf_counter() - started)
        return Answer(tokenizer.decode(tokens, skip_special_tokens=True), rate, first_s)

    runtime.run(answer(prompts[0]))  # what the first request sets up
    answers = [runtime.run(answer(prompt)) for prompt in prompts]
    runtime.shutdown()
    return answers


# --- the service ----------------------------------------------------------------------------------


def _served(
    settings: Settings, file: Path, prompts: Sequence[Prompt], max_tokens: int
) -> dict[str, list[Answer]]:
    """Texts of the service, by the name of the system; what did not run is missing."""
    answers: dict[str, list[Answer]] = {}
    with tempfile.TemporaryDirectory(prefix="card-trtllm-") as folder:
        log = Path(folder, "service.log")
        try:
            with running_service(settings, file, log) as service:
                for decoding, system in SERVED.items():
                    asked = _ask(service.grpc, prompts, decoding, max_tokens)
                    answers[system] = asyncio.run(asked)
        except (ProcessEndedError, CardError, OSError) as error:
            console.print(f"the service: {error}")
            if log.exists():
                with log.open("rb") as lines:
                    console.print(last_words(lines))
    return answers


async def _ask(url: str, prompts: Sequence[Prompt], decoding: str, max_tokens: int) -> list[Answer]:
    """Raises `CardError`."""
    answers = []
    async with CardClient(url) as client:
        for prompt in prompts:
            tally = Tally()
            request = GenerateRequest(
                prompt.text,
                max_tokens,
                decoding=decoding,
                return_perf_metrics=True,
                return_num_output_tokens=True,
            )
            async with aclosing(client.stream(request, timeout_s=_ANSWER_S)) as deltas:
                async for delta in deltas:
                    tally.add(delta)
            accepted = tally.last.total_accepted_draft_tokens or 0
            first_s = tally.first_s or 0.0
            answers.append(Answer(tally.text, tally.tokens_per_s, first_s, accepted))
    return answers


# --- what came ------------------------------------------------------------------------------------


def _wrong(answers: dict[str, list[Answer]]) -> list[str]:
    """Systems with another text, or that did not run (draft-target may). Empty: all is right."""
    card = SERVED["card"]
    wrong = [
        f"{system} did not run" for system in (PLAIN, *SERVED.values()) if system not in answers
    ]
    if PLAIN in answers:
        wrong += [
            f"{system} wrote other texts"
            for system, texts in answers.items()
            if _equal(texts, answers[PLAIN]) < len(texts)
        ]
    if card in answers and not any(answer.accepted for answer in answers[card]):
        wrong.append("no candidate was accepted")
    return wrong


def _equal(texts: Sequence[Answer], own_texts: Sequence[Answer]) -> int:
    return sum(one.text == other.text for one, other in zip(texts, own_texts, strict=True))


def _table(answers: dict[str, list[Answer]], prompts: Sequence[Prompt]) -> Table:
    """Medians of the prompts, and the prompts on which the plain mode wrote another text."""
    system_name = Column("greedy, one stream", no_wrap=True)
    figures = ("tokens/s", "first, s", "accepted", "texts", "other texts")
    table = Table(system_name, *figures, box=box.SIMPLE)
    plain = answers.get(PLAIN)
    for system, texts in answers.items():
        pairs = zip(prompts, texts, plain or texts, strict=True)
        other = [prompt.id for prompt, one, right in pairs if one.text != right.text]
        table.add_row(
            system,
            f"{statistics.median(answer.tokens_per_s for answer in texts):.1f}",
            f"{statistics.median(answer.first_token_s for answer in texts):.3f}",
            str(sum(answer.accepted for answer in texts)),
            str(len(texts)),
            ", ".join(other) or "none",
        )
    return table


if __name__ == "__main__":
    app(prog_name="scripts/trtllm_check")
