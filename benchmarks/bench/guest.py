"""`bench guest`: CARD on vLLM beside vLLM alone, on one model and one machine."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import fmean
from typing import Annotated, cast

import typer
from rich.console import Console
from tokenizers import Tokenizer

from bench import terminal
from bench.contest import tasks_of
from bench.engines import draft_process
from bench.in_process import Loops, own_pool
from bench.measurement import Measurement, Task, geometric_mean
from bench.peers import Mode, PeerError, Worker
from bench.prompts import check_room, read_prompts
from bench.runner import clock_of
from bench.streams import measured
from bench.vllm_peer import ALONE, OWN_MODES, worker
from card.cache import Pool
from card.decoding import TargetLoop, TargetTimes
from card.serving.requests.vocabulary import Vocabulary
from card.settings import Settings, SettingsError, load_settings
from card.speculation.pacing import PLAIN
from card.vllm.process import VllmProcess
from card_gateway.template import read_model

_LOOK_S = 0.01


class _Target:
    """In place of a target's loop: vLLM's process, which decodes."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self.times = TargetTimes()
        self._pool = pool
        self.process = VllmProcess(settings, "target", os.getpid())
        self._watch = self.process.make_loop(pool)
        self._rings = pool.commit_bell.rings

    def step(self) -> None:
        bell = self._pool.commit_bell
        bell.wait(self._rings, _LOOK_S)
        self._rings = bell.rings  # before the caller looks, so that no commit is missed
        if not self._pool.states.any():
            self._watch.step()  # raises if it has ended


def guest(
    settings_file: Annotated[
        Path, typer.Option("--settings", help="Settings (YAML) with target.engine: vllm.")
    ],
    prompts: terminal.PromptsFile = terminal.PROMPTS,
    limit: terminal.Limit = None,
    max_tokens: terminal.MaxTokens = 128,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature.")] = 0.0,
    minutes: Annotated[float, typer.Option(min=0.1, help="No prompt is begun later.")] = 4.0,
    modes: Annotated[
        str, typer.Option(help="vLLM's own ways, with how many tokens they draft; vllm is plain.")
    ] = ",".join(OWN_MODES),
    streams: Annotated[int, typer.Option(min=1, help="Texts at the same time.")] = 1,
) -> None:
    """Measure CARD on vLLM beside vLLM alone: tokens per second, and the cost of the adapter."""
    console = Console()
    with terminal.said_in_one_line(), ExitStack() as stack:
        settings = load_settings(settings_file)
        if settings.guest != "vllm":
            raise SettingsError(f"{settings_file}: target.engine is not vllm")
        tokenizer = Vocabulary.load(settings.target.path).tokenizer
        template, _ = read_model(settings.target.path)
        read = read_prompts(prompts, tokenizer, limit, template.render)
        tasks = tasks_of(read, [temperature], max_tokens)
        check_room(read, max_tokens, settings.limits)
        workers: dict[str, Worker] = {}
        with console.status("loading vLLM"):
            for mode in modes.split(","):
                try:
                    workers[mode] = worker(settings, mode, streams)
                except PeerError as error:
                    console.print(f"left out: {error}", highlight=False, markup=False)
                else:
                    stack.callback(workers[mode].stop)
            loops = stack.enter_context(_loops(settings, tokenizer))

        def ours(task: Task, decoding: str) -> Measurement:
            loops.use(settings.target.threads, decoding)
            return measured(streams, *loops.write([task] * streams, streams, decoding))

        def systems(task: Task) -> Iterator[tuple[str, Measurement]]:
            for mode, alone in workers.items():
                yield mode, alone.complete(task, Mode(mode, "generate"), tokenizer)
            yield "CARD, no candidates", ours(task, PLAIN)
            yield "CARD", ours(task, "auto")

        found: defaultdict[str, dict[str, list[Measurement]]] = defaultdict(
            lambda: defaultdict(list)
        )
        has_time = clock_of(minutes)
        for number, task in enumerate([tasks[0], *tasks]):  # the first text warms up
            if number > 1 and not has_time():
                break
            with console.status(f"text {number} of {len(tasks)}"):
                for name, done in systems(task):
                    if number:
                        found[task.prompt.category][name].append(done)
        for line in lines(found):
            console.print(line, highlight=False, markup=False)


@contextmanager
def _loops(settings: Settings, tokenizer: Tokenizer) -> Iterator[Loops]:
    with own_pool(settings) as (pool, settings):
        target = _Target(pool, settings)
        drafts = "draft" in settings.roles
        try:
            with draft_process(settings, pool.new_key()) if drafts else nullcontext():
                decodes = cast(TargetLoop, target)
                yield Loops(pool, tokenizer, lambda threads, spreads: decodes)
        finally:
            target.process.close()


def lines(found: Mapping[str, Mapping[str, Sequence[Measurement]]]) -> Iterator[str]:
    """The report, as Markdown: a row for each category of prompts and each system."""
    yield "| prompts | system | tokens/s | / vLLM alone | texts equal to vLLM's | first token, ms |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for category, systems in found.items():
        alone = systems[ALONE]
        for name, done in systems.items():
            gain = geometric_mean(
                [
                    one.tokens_per_s / other.tokens_per_s
                    for one, other in zip(done, alone, strict=True)
                ]
            )
            equal = sum(one.tokens == other.tokens for one, other in zip(done, alone, strict=True))
            yield (
                f"| {category} | {name} | {fmean(one.tokens_per_s for one in done):.1f} | "
                f"{gain:.2f} | {equal} of {len(done)} | "
                f"{1000 * fmean(one.first_token_s for one in done):.0f} |"
            )
