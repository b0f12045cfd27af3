"""What a client expects of a text makes candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.sampling import SamplingParameters

TARGET = FakeModel(64)
PROMPT = list(range(20))  # several chunks
PREDICTED = request_of(PROMPT, 40, "card", SamplingParameters(temperature=0.8, seed=2))
TEXT = autoregressive(TARGET, PREDICTED)


WHAT_MAY_BE_SAID = {
    "nothing": [],
    "the text": TEXT,
    "the text backwards": TEXT[::-1],
    "one token": [63] * 40,
    "the text with an edit": [*TEXT[:20], 1, 2, *TEXT[24:]],
}


def accepted(prediction: list[int]) -> int:
    """Of the candidates of a text without a draft; the text is that of the target alone."""
    request = replace(PREDICTED, prediction=np.array(prediction, np.int64))
    engines = FakeEngine(TARGET, tree=False), FakeEngine(TARGET, tree=True)
    with OneProcess(*engines, settings_of(ngram_tokens=4)) as both:
        stream = both.open(request)
        assert both.run([stream], draft_steps=0) == [TEXT]
        return stream.counters.accepted


def test_most_of_a_text_that_was_predicted_is_accepted() -> None:
    counts = {name: accepted(prediction) for name, prediction in WHAT_MAY_BE_SAID.items()}
    assert counts["the text"] > len(TEXT) / 2
    assert counts["the text"] > counts["the text with an edit"] > 3 * counts["nothing"]
