"""`bench guest`: CARD on vLLM beside vLLM alone, on one model and one machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from tokenizers import Tokenizer

from bench import terminal
from bench.contest import read_tasks
from bench.engines import draft_process
from bench.figures import Question, ratios, summarise
from bench.in_process import Loops, own_pool
from bench.measurement import Measurement, Task
from bench.peers import PeerError
from bench.report import ratio_table, table
from bench.runner import Completion, Contender, Runner, clock_of
from bench.streams import measured
from bench.vllm_peer import ALONE, line_up_vllm
from card.cache import Pool
from card.decoding import TargetLoop, TargetTimes
from card.settings import Settings, SettingsError, load_settings
from card.speculation.pacing import PLAIN
from card.vllm.process import VllmProcess

_LOOK_S = 0.01


class _Target:
    """Takes the place of a target's loop: vLLM's process decodes."""

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
    streams: Annotated[int, typer.Option(min=1, help="Texts at the same time.")] = 1,
) -> None:
    """Measure CARD on vLLM beside vLLM alone: tokens per second, and the cost of the adapter."""
    console, left_out = Console(), list[str]()
    extent = terminal.Extent(
        prompts, max_tokens, None, settings_file, limit, minutes, [temperature]
    )
    with terminal.said_in_one_line(), ExitStack() as stack:
        settings = load_settings(settings_file)
        if settings.guest != "vllm":
            raise SettingsError(f"{settings_file}: target.engine is not vllm")
        tokenizer, tasks = read_tasks(settings, extent)
        with console.status("loading vLLM"):
            peers = [*line_up_vllm(stack, settings, tokenizer, left_out, streams)]
            if not peers or peers[0].system != ALONE:
                raise PeerError("; ".join(left_out))
            loops = stack.enter_context(_loops(settings, tokenizer))

        def contender(system: str, decoding: str) -> Contender:
            def complete(task: Task) -> Measurement:
                loops.use(settings.target.threads, decoding)
                return measured(streams, *loops.write([task] * streams, streams, decoding))

            return Contender(system, "in_process", 1, streams=streams, complete=complete)

        plain, card = contender("CARD, no candidates", PLAIN), contender("CARD", "auto")
        line_up = {temperature: [*peers, plain, card]}
        runner = Runner(console, left_out)
        runner.run(line_up, tasks[:1])  # warms up
        done = runner.run(line_up, tasks, clock_of(minutes))
        questions = [
            Question("CARD / vLLM", card.key, (peers[0].key,)),
            Question("CARD / vLLM's best", card.key, tuple(peer.key for peer in peers)),
            Question("CARD, no candidates / vLLM", plain.key, (peers[0].key,)),
        ]
        for line in (*left_out, *lines(done), *ratio_table(ratios(done, questions))):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


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


def lines(done: Sequence[Completion]) -> Iterator[str]:
    """A table of all systems in Markdown."""
    texts, equal = Counter(c.contender for c in done), Counter(c.contender for c in done if c.equal)
    rows = [
        (
            who.key,
            f"{row['tokens_per_s']:.1f}",
            f"{equal[who]} of {count}",
            f"{row['time_to_first_token_ms']:.0f}",
        )
        for (who, count), row in zip(texts.items(), summarise(done), strict=True)
    ]
    return table(("system", "tokens/s", "texts equal to vLLM's", "first token, ms"), rows)
