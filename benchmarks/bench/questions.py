"""Short sums and extractions with one right answer each, always the same ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

KINDS = ("sums", "extractions")
_NAMES = ("Anna", "Boris", "Clara", "David", "Elena", "Felix", "Grace", "Henry", "Irene", "Jonas")
_TRADES = ("nurse", "baker", "pilot", "teacher", "farmer", "singer", "lawyer", "painter")
_CITIES = ("Lisbon", "Vienna", "Oslo", "Cairo", "Lima", "Tokyo", "Dublin", "Athens", "Seoul")
_PETS = ("cats", "dogs", "birds", "horses", "rabbits", "goats")
_SHOWN = 3


@dataclass(frozen=True)
class Question:
    """A text to go on with, and what the first line of it must end with.

    kind  one of `KINDS`
    """

    kind: str
    prompt: str
    answer: str

    def is_answered_by(self, text: str) -> bool:
        line = text.lstrip().split("\n", 1)[0]
        return line.rstrip(" .").endswith(f" {self.answer}")


def questions(count: int, seed: int = 1) -> list[Question]:
    """So many, the two kinds in turn."""
    draw = random.Random(seed)
    makers = _a_sum, _an_extraction
    return [_question(KINDS[index % 2], makers[index % 2], draw) for index in range(count)]


def _question(
    kind: str, make: Callable[[random.Random], tuple[str, str, str]], draw: random.Random
) -> Question:
    """Behind examples that show what an answer looks like."""
    shown = [make(draw) for _ in range(_SHOWN)]
    asked, _, answer = make(draw)
    examples = "".join(f"{question}\nAnswer:{said}\n\n" for question, said, _ in shown)
    return Question(kind, f"{examples}{asked}\nAnswer:", answer)


def _a_sum(draw: random.Random) -> tuple[str, str, str]:
    """A question, an answer as a sentence, and what that ends with."""
    one, other = draw.randint(2, 60), draw.randint(2, 39)
    total = str(one + other)
    return (
        f"Question: What is {one} plus {other}?",
        f" If we begin with {one} and add {other} to it, then the sum is {total}.",
        total,
    )


def _an_extraction(draw: random.Random) -> tuple[str, str, str]:
    name, trade, city = draw.choice(_NAMES), draw.choice(_TRADES), draw.choice(_CITIES)
    count, pets = draw.randint(2, 9), draw.choice(_PETS)
    text = f"{name} is a {trade} who lives in {city} and has {count} {pets}."
    asked, said, answer = draw.choice(
        [
            (f"Where does {name} live?", f"{name} lives in the city of {city}", city),
            (f"What does {name} do?", f"{name} works every day as a {trade}", trade),
            (f"Which animals does {name} have?", f"the animals of {name} are {pets}", pets),
        ]
    )
    return f"Text: {text}\nQuestion: {asked}", f" The text says that {said}.", answer
