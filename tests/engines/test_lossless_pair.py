"""Lossless with a trained pair: real arithmetic, real text, every way to decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from one_process import OneProcess, request_of
from real_pair import pair_settings
from tokenizers import Tokenizer

from card.engines import Engine
from card.engines.row_costs import RowCosts
from card.loading import Examination, load_engine
from card.sampling import SamplingParameters
from card.settings import Settings
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS

PROMPTS = [
    'def fibonacci(n):\n    """The n-th Fibonacci number."""\n',
    "import os\n\n\ndef list_files(directory):\n    for",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self",
    "for i in range(10):\n    if i % 2 == 0:\n",
]
TOKENS = 40
SAMPLINGS = [
    SamplingParameters(end_ids=(0,)),
    SamplingParameters(temperature=0.8, seed=7, end_ids=(0,)),
]
SPECULATING = [name for name, pacing in PACINGS.items() if pacing.drafts]
GAMMA = 5
SHAPE = {"rows": 6, "depth": 8, "width": 4}
COSTS = RowCosts({1: 1.0, 4: 1.1, 8: 1.6, 16: 2.6, 32: 4.6}, alone_share=0.7)
"""What passes are said to cost, so that nobody measures it."""

OTHER_SHAPES = {
    "smallest": ("card", {"rows": 2, "depth": 1, "width": 1, "ngram_tokens": 0}, GAMMA),
    "wide": ("card", {"rows": 16, "depth": 6, "width": 16}, GAMMA),
    "adaptive": ("card", {"rows": "auto", "depth": 32, "width": 4}, GAMMA),
    **{growth: ("card", {**SHAPE, "growth": growth, "depth": 16}, GAMMA) for growth in GROWTHS},
    "γ = 1": ("draft_then_verify", SHAPE, 1),
    "γ = 12": ("pearl", {"rows": 16, "depth": 16, "width": 3}, 12),
}
"""How much is drafted, in what form, and how much of it is verified at once."""


@dataclass(frozen=True)
class Bundle:
    """The pair, loaded once, and its prompts as token ids; the target as each query needs it."""

    settings: Settings
    targets: dict[str, Engine]
    draft: Engine
    prompts: list[list[int]]

    def write(
        self,
        prompts: Sequence[list[int]],
        decoding: str,
        parameters: SamplingParameters,
        query: str,
        shape: Mapping[str, Any] = SHAPE,
        gamma: int = GAMMA,
    ) -> tuple[list[list[int]], int]:
        """Texts of sessions decoded together, and how many candidates they accepted."""
        speculation = self.settings.speculation.model_copy(update={"query": query, **shape})
        settings = self.settings.model_copy(update={"speculation": speculation})
        with OneProcess(self.targets[query], self.draft, settings) as both:
            streams = [
                both.open(request_of(prompt, TOKENS, decoding, parameters, gamma=gamma), index)
                for index, prompt in enumerate(prompts)
            ]
            texts = both.run(streams)
            accepted = sum(stream.counters.accepted for stream in streams)
            both.close(streams)
        return texts, accepted


@pytest.fixture(scope="module")
def pair() -> Bundle:
    # That more threads change no bit is seen once.
    threads_of = {"chain": {}, "subtree": {"threads": 1, "threads_alone": 1}}
    loaded = {
        query: pair_settings(
            speculation={"query": query},
            target=threads,
            cache={"slots": 4, "nodes": 128},
            limits={"prompt_tokens": 64, "context_tokens": 128},
            serving={"engine_timeout_s": 600},
        )
        for query, threads in threads_of.items()
    }
    settings = loaded["chain"]
    tokenizer = Tokenizer.from_file(str(settings.target.path / "tokenizer.json"))
    load = partial(load_engine, examination=Examination(measure_row_costs=lambda _: COSTS))
    return Bundle(
        settings,
        {query: load(found, "target") for query, found in loaded.items()},
        load(settings, "draft"),
        [tokenizer.encode(prompt).ids for prompt in PROMPTS],
    )


@pytest.fixture(scope="module", params=["chain", "subtree"])
def query(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module", params=SAMPLINGS, ids=["greedy", "temperature 0.8"])
def alone(
    pair: Bundle, query: str, request: pytest.FixtureRequest
) -> tuple[SamplingParameters, list[list[int]]]:
    """Parameters, and the texts that the target writes under them, one prompt at a time: the target
    of the same query, for subtrees are attended to under masks, whose bits are others in bfloat16.
    """
    parameters: SamplingParameters = request.param
    texts = [
        pair.write([prompt], "autoregressive", parameters, query)[0][0] for prompt in pair.prompts
    ]
    assert max(map(len, texts)) == TOKENS
    assert len({tuple(text) for text in texts}) == len(PROMPTS)
    return parameters, texts


@pytest.mark.parametrize(("sessions", "least"), [(1, 0), (len(PROMPTS), TOKENS)])
@pytest.mark.parametrize("decoding", SPECULATING, ids=str)
def test_one_session_and_sessions_decoded_together_equal_the_target_alone(
    pair: Bundle,
    alone: tuple[SamplingParameters, list[list[int]]],
    decoding: str,
    query: str,
    sessions: int,
    least: int,
) -> None:
    parameters, texts = alone
    found, accepted = pair.write(pair.prompts[:sessions], decoding, parameters, query)
    assert found == texts[:sessions]
    assert accepted > least, "the pair does speculate"


@pytest.mark.parametrize(("decoding", "shape", "gamma"), OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_no_shape_of_speculation_changes_a_token(
    pair: Bundle,
    alone: tuple[SamplingParameters, list[list[int]]],
    decoding: str,
    shape: Mapping[str, Any],
    gamma: int,
    query: str,
) -> None:
    parameters, texts = alone
    found, accepted = pair.write(pair.prompts[:2], decoding, parameters, query, shape, gamma)
    assert found == texts[:2]
    assert accepted > 0


def test_autoregressive_sessions_do_not_influence_each_other(
    pair: Bundle, query: str, alone: tuple[SamplingParameters, list[list[int]]]
) -> None:
    parameters, texts = alone
    assert pair.write(pair.prompts, "autoregressive", parameters, query)[0] == texts
