"""The questions of `bench quality`, and what counts as an answer."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.questions import KINDS, Question, questions


def test_the_questions_are_always_the_same_and_half_of_each_kind() -> None:
    asked = questions(200)
    assert asked == questions(200)
    assert Counter(question.kind for question in asked) == dict.fromkeys(KINDS, 100)
    assert len({question.prompt for question in asked}) == 200
    assert all(question.prompt.endswith("\nAnswer:") for question in asked)


def test_the_examples_in_a_prompt_are_right() -> None:
    sums = [question for question in questions(40) if question.kind == "sums"]
    for question in sums:
        *shown, _ = question.prompt.split("\n\n")
        for example in shown:
            numbers = [int(word) for word in example.replace("?", " ").replace(".", " ").replace(
                ",", " ").split() if word.isdigit()]  # fmt: skip
            one, other, *_, total = numbers
            assert one + other == total


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" then the sum is 46.\n\nQuestion: What is 1 plus 1?", True),
        (" then the sum is 46", True),
        (" then the sum is 146.", False),
        (" then the sum is 45.\n46.", False),
        ("", False),
    ],
)
def test_the_first_line_must_end_with_the_answer(text: str, right: bool) -> None:
    assert Question("sums", "?", "46").is_answered_by(text) is right
