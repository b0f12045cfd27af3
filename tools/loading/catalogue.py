"""Requests of every length and kind, drawn with a seed so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from card.settings import REPOSITORY_ROOT, Settings
from card_client import GenerateRequest
from model_files import model_files_of

SHORTEST_OUTPUT, LONGEST_OUTPUT = 1, 192
_SPARE_TOKENS = 16
"""A text that is cut may have a few more tokens than the piece it was cut to."""


def draw_catalogue(settings: Settings, seed: int, count: int) -> list[GenerateRequest]:
    """`count` requests, half of them greedy, their lengths spread evenly over the orders of
    magnitude up to the limits of `settings`."""
    random_ = random.Random(seed)
    tokenizer = model_files_of(settings.target.path).tokenizer()
    sources = sorted((REPOSITORY_ROOT / "python_backend").rglob("*.py"))
    return [_draw(random_, tokenizer, sources, settings) for _ in range(count)]


def _draw(
    random_: random.Random, tokenizer: Tokenizer, sources: Sequence[Path], settings: Settings
) -> GenerateRequest:
    limits = settings.limits
    longest = limits.prompt_tokens - _SPARE_TOKENS
    prompt = _prompt(random_, tokenizer, sources, _spread(random_, 1, longest))
    room = limits.context_tokens - len(tokenizer.encode(prompt).ids)
    most = min(LONGEST_OUTPUT, limits.max_tokens, room)
    request = GenerateRequest(
        prompt,
        _spread(random_, SHORTEST_OUTPUT, most),
        return_num_output_tokens=True,
        end_id=random_.choice([None, -1]),
    )
    if random_.random() < 0.2:
        request = replace(request, stop_words=[random_.choice(["\n\n", "return", ":", "é"])])
    if random_.random() < 0.2:
        request = replace(request, bad_words=["self", "def"])
    if random_.random() < 0.2:
        request = replace(request, repetition_penalty=1.2, frequency_penalty=0.1)
    if random_.random() < 0.5:
        return request
    return replace(
        request,
        temperature=random_.choice([0.2, 0.8, 1.0, 1.5]),
        top_k=random_.choice([None, 1, 20, 1000]),
        top_p=random_.choice([None, 0.5, 0.95]),
        seed=random_.getrandbits(64),
    )


def _prompt(
    random_: random.Random, tokenizer: Tokenizer, sources: Sequence[Path], tokens: int
) -> str:
    """A piece of this repository's own code, or now and then text of another kind."""
    if random_.random() < 0.1:
        return random_.choice(["x", " ", "\n", "def f(", "Grüße, 世界 🌍", "0" * 40, "}{" * 30])
    text = ""
    while len(tokenizer.encode(text).ids) <= tokens:
        text += random_.choice(sources).read_text(encoding="utf-8") + "\n"
    encoded = tokenizer.encode(text)
    first = random_.randrange(len(encoded.ids) - tokens)
    start, stop = encoded.offsets[first][0], encoded.offsets[first + tokens - 1][1]
    return text[start:stop] or "x"


def _spread(random_: random.Random, least: int, most: int) -> int:
    """A whole number whose logarithm is spread evenly."""
    return min(most, int(least * (most / least + 1) ** random_.random()))
