"""Requests out of this repository's pages: of every length and kind, or as long as slots allow."""

from __future__ import annotations

import random
from dataclasses import replace

from tokenizers import Encoding

from card.settings import REPOSITORY_ROOT, Settings
from card_client import GenerateRequest
from model_files import model_files_of

MOST_NEW_TOKENS = 192
_LONG = 1_000
_SPARE = 16
"""A piece of a text may have a few more tokens than it had there."""
_ODD = ("x", " ", "\n", "def f(", "Grüße, 世界 🌍", "0" * 40, "}{" * 30)


def draw_catalogue(settings: Settings, seed: int, count: int) -> list[GenerateRequest]:
    """`count` requests, half of them greedy, their lengths spread evenly over the orders of
    magnitude up to the limits of `settings`."""
    pages = _pages(settings)
    return [_draw(random.Random(f"{seed} {number}"), pages, settings) for number in range(count)]


def long_texts(settings: Settings) -> list[GenerateRequest]:
    """As many as there are slots, each with a prompt of its own and a long output."""
    limits, pages = settings.limits, _pages(settings)
    size = min(_LONG, limits.prompt_tokens - _SPARE)
    most = min(_LONG, limits.max_tokens, limits.context_tokens - size - _SPARE)
    prompts = (_piece(pages, at * size, size) for at in range(settings.cache.slots))
    return [GenerateRequest(prompt, max_tokens=most, end_id=-1) for prompt in prompts]


def _draw(draw: random.Random, pages: tuple[str, Encoding], settings: Settings) -> GenerateRequest:
    limits = settings.limits
    tokens = _spread(draw, limits.prompt_tokens - _SPARE)
    prompt = _piece(pages, draw.randrange(len(pages[1].ids) - tokens), tokens)
    room = limits.context_tokens - tokens - _SPARE
    request = GenerateRequest(
        draw.choice(_ODD) if draw.random() < 0.1 else prompt or "x",
        _spread(draw, max(1, min(MOST_NEW_TOKENS, limits.max_tokens, room))),
        return_num_output_tokens=True,
        end_id=draw.choice([None, -1]),
    )
    for changes in (
        {"stop_words": [draw.choice(["\n\n", "return", ":", "é"])]},
        {"bad_words": ["self", "def"]},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.1},
    ):
        if draw.random() < 0.2:
            request = replace(request, **changes)
    if draw.random() < 0.5:
        return request
    return replace(
        request,
        temperature=draw.choice([0.2, 0.8, 1.0, 1.5]),
        top_k=draw.choice([None, 1, 20, 1000]),
        top_p=draw.choice([None, 0.5, 0.95]),
        seed=draw.getrandbits(64),
    )


def _pages(settings: Settings) -> tuple[str, Encoding]:
    """This repository's documentation, as often as it takes to fill every slot, and its tokens."""
    files = sorted((REPOSITORY_ROOT / "docs").glob("*.md"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    tokens = model_files_of(settings.target.path).tokenizer().encode(text)
    return text, tokens


def _piece(pages: tuple[str, Encoding], first: int, tokens: int) -> str:
    text, encoded = pages
    first %= len(encoded.ids) - tokens
    return text[encoded.offsets[first][0] : encoded.offsets[first + tokens - 1][1]]


def _spread(draw: random.Random, most: int) -> int:
    """A whole number from 1 to `most`, its logarithm spread evenly."""
    return min(most, int((most + 1) ** draw.random()))
