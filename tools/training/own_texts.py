"""Let a target write texts to train a draft or a head on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bench.chats import read_chats
from bench.prompts import PromptsError
from card.engines import EngineError
from card.loading import load_engine
from card.sampling import SamplingParameters
from card.settings import CacheSettings, SettingsError, load_settings
from card_client.chat_template import ChatTemplateError
from training.errors import TrainingError
from training.terminal import bar, console, told
from writing import write_together


def texts(
    target: Annotated[Path, typer.Argument(help="Hugging Face directory, or GGUF file.")],
    prompts: Annotated[Path, typer.Argument(help="JSONL: `prompt` or `messages` in each line.")],
    output: Annotated[Path, typer.Argument(help="Where the array goes (.npy).")],
    count: Annotated[int, typer.Option(min=1, help="Texts; prompts come again.")] = 4096,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of a text, with its prompt.")] = 1024,
    at_once: Annotated[int, typer.Option(min=1, help="Texts that share a pass.")] = 16,
) -> None:
    """Let a target write texts: an array of integers, a row for each text. The first time that a
    prompt comes, half of the texts are greedy; all others are sampled. No token ends a text."""
    with told(), bar("texts") as show:
        try:
            settings = load_settings(target={"path": str(target)}, speculation={"drafter": "ngram"})
            settings = settings.model_copy(update={"cache": CacheSettings(slots=at_once)})
            _, read = read_chats(settings.target.path, prompts)
            if tokens > settings.limits.context_tokens:
                raise TrainingError(f"--tokens {tokens}: limits.context_tokens is smaller")
            engine = load_engine(settings, "target")
        except (SettingsError, EngineError, PromptsError, ChatTemplateError) as error:
            raise TrainingError(str(error)) from error
        written: list[list[int]] = []
        while len(written) < count:
            numbers = range(len(written), min(count, len(written) + at_once))
            parameters = [_parameters(number, len(read)) for number in numbers]
            beginnings = [read[number % len(read)].tokens[: tokens // 2] for number in numbers]
            written += write_together(engine, beginnings, parameters, tokens)
            show(len(written) / count, f"{len(written)} of {count}")
        small = engine.vocabulary <= np.iinfo(np.uint16).max + 1
        np.save(output, np.array(written, np.uint16 if small else np.uint32))
    console.print(f"{output}: {count} texts of {tokens} tokens")


def _parameters(number: int, prompts: int) -> SamplingParameters:
    is_greedy = number < prompts and number % 2 == 0
    temperature = 0.0 if is_greedy else (0.8, 1.0)[number // 2 % 2]
    return SamplingParameters(temperature=temperature, seed=number)
