"""vLLM as the target: its texts with candidates are its own, whatever the cache holds."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm_target_scene import (
    MAX_TOKENS,
    PROMPTS,
    Answer,
    RunningTarget,
    guided,
    plainly,
    request_of,
    running_target,
)

from card.cache import EngineState, Finish, Pool
from card.engines import EngineError

TAKEN = [
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"bad_words": ((200,), (264, 12))},
    {"min_tokens": 20, "end_ids": tuple(range(20, 80))},
    {"end_ids": (264, 12)},
    {"salt": b"0123456789abcdef"},
    {"reuses_kv": False},
    {"acceptance": "exact", "trace": True},
    {**guided("regex", "(ab|cd|ef){20}[0-9]{5}"), "end_ids": (0,)},
]


@pytest.fixture(scope="module")
def target() -> Iterator[RunningTarget]:
    with shared_memory() as directory, running_target(directory) as running:
        running.pool.beat("draft", EngineState.ATTACHED)
        yield running


@contextmanager
def shared_memory() -> Iterator[Path]:
    directory = Path("/dev/shm") / f"card-test-{os.getpid()}-{threading.get_ident()}"
    directory.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        directory.rmdir()


@pytest.fixture(scope="module")
def right(target: RunningTarget) -> list[Answer]:
    """What vLLM writes without candidates."""
    return target.ask([plainly(request_of(prompt)) for prompt in PROMPTS])


class Draft:
    """A draft that knows the texts, and lies in a share of its trees."""

    def __init__(self, right: list[Answer], lies: float) -> None:
        self._texts = {tuple(p): a.tokens for p, a in zip(PROMPTS, right, strict=True)}
        self._lies = lies
        self._draw = np.random.default_rng(1)

    def __call__(self, pool: Pool, index: int, session_id: int, length: int) -> None:
        pool.beat("draft", EngineState.ATTACHED)
        slot = pool.draft_slot(index)
        prompt = tuple(slot.request().prompt.tolist())
        written = length - len(prompt)
        chain = self._texts[prompt][written : written + 12]
        if not chain:
            return
        parents = list(range(-1, len(chain) - 1))
        scores = [-0.01 * (place + 1) for place in range(len(chain))]
        if self._draw.random() < self._lies:
            match self._draw.integers(5):
                case 0:
                    chain[self._draw.integers(len(chain))] = int(self._draw.integers(3072))
                case 1:
                    chain[-1] = 1 << 40
                case 2:
                    parents[-1] = len(chain) + 7
                case 3:
                    scores[0] = float("nan")
                case 4:
                    length -= 3
        slot.replace(session_id, length, chain, parents, scores)


@pytest.mark.parametrize("lies", [0.0, 0.7])
def test_greedy_texts_are_vllms_own_when_a_draft_knows_or_lies(
    target: RunningTarget, right: list[Answer], lies: float
) -> None:
    found = target.ask([request_of(prompt) for prompt in PROMPTS], Draft(right, lies))
    assert [one.tokens for one in found] == [one.tokens for one in right]
    assert sum(one.accepted for one in found) > MAX_TOKENS
    assert all(one.finish is Finish.LENGTH for one in found)


@pytest.mark.parametrize("fields", TAKEN, ids=lambda fields: next(iter(fields)))
def test_greedy_texts_are_vllms_own_when_a_parameter_is_on(
    target: RunningTarget, right: list[Answer], fields: dict[str, Any]
) -> None:
    requests = [request_of(prompt, **fields) for prompt in PROMPTS]
    alone = target.ask([plainly(one) for one in requests])
    found = target.ask(requests, Draft(right, 0.3))
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    assert [one.finish for one in found] == [one.finish for one in alone]
    assert all(one.tokens for one in found)


def test_text_is_vllms_own_when_it_fills_the_context(target: RunningTarget) -> None:
    limits = target.settings.limits
    prompt = (PROMPTS[0] * limits.prompt_tokens)[: limits.prompt_tokens]
    request = request_of(prompt, max_tokens=limits.context_tokens - len(prompt))
    (alone,), (found,) = target.ask([plainly(request)]), target.ask([request])
    assert found.tokens == alone.tokens
    assert len(found.tokens) == request.max_tokens
    assert found.accepted > 0


def test_log_probabilities_are_the_same_when_candidates_are_verified(
    target: RunningTarget, right: list[Answer]
) -> None:
    requests = [
        request_of(p, log_probabilities=True, likeliest=3, prompt_log_probabilities=True)
        for p in PROMPTS
    ]
    alone = target.ask([plainly(one) for one in requests])
    for found, wanted in zip(target.ask(requests, Draft(right, 0.3)), alone, strict=True):
        assert np.allclose(found.log_probabilities, wanted.log_probabilities, atol=1e-4)
        assert found.prompt_log_probabilities == wanted.prompt_log_probabilities
        for token, value, places in zip(
            found.tokens, found.log_probabilities, found.likeliest, strict=True
        ):
            assert len(places) == 3
            assert places[0][0] == token
            assert places[0][1] == pytest.approx(value, abs=1e-6)


SAMPLED = [{"top_k": 5}, {"top_p": 0.8}, {}]


@pytest.mark.parametrize("filters", SAMPLED, ids=str)
def test_seeded_text_is_repeated_when_others_are_speculated_beside_it(
    target: RunningTarget, right: list[Answer], filters: dict[str, Any]
) -> None:
    """And those others are not changed by its temperature."""
    seeded = [plainly(request_of(prompt, temperature=0.9, seed=7, **filters)) for prompt in PROMPTS]
    alone = target.ask(seeded)
    both = target.ask([request_of(prompt) for prompt in PROMPTS] + seeded, Draft([*right], 0.3))
    assert [one.tokens for one in both] == [one.tokens for one in (*right, *alone)]


@pytest.mark.parametrize("filters", SAMPLED, ids=str)
def test_sampled_tokens_have_vllms_distribution_when_candidates_are_verified(
    target: RunningTarget, right: list[Answer], filters: dict[str, Any]
) -> None:
    """The second token, by chi-square: its candidate is accepted or replaced."""
    drawn: list[Counter[int]] = []
    for pacing in ("autoregressive", "card"):
        found: Counter[int] = Counter()
        for number in range(30):
            requests = [
                request_of(
                    PROMPTS[0], pacing, 4, temperature=1.3, seed=16 * number + place, **filters
                )
                for place in range(16)
            ]
            answers = target.ask(requests, Draft(right, 0.2))
            found.update(one.tokens[1] for one in answers)
        drawn.append(found)
    assert are_of_one_distribution(*drawn)


def are_of_one_distribution(first: Counter[int], second: Counter[int]) -> bool:
    """Pearson's chi-square of two samples of one size; rare tokens share a class of at least 20."""
    table: list[list[int]] = [[0, 0]]
    pooled = first + second
    for token in sorted(pooled, key=lambda token: (pooled[token], token)):
        if sum(table[-1]) >= 20:
            table.append([0, 0])
        table[-1][0] += first[token]
        table[-1][1] += second[token]
    if sum(table[-1]) < 20:
        table.pop()
    counts = np.array(table, float).T
    statistic = float(((counts[0] - counts[1]) ** 2 / counts.sum(axis=0)).sum())
    freedom = counts.shape[1] - 1
    assert freedom >= 2
    # Wilson and Hilferty's approximation of the quantile at one in ten thousand.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    return statistic < limit


def test_slot_is_released_when_it_is_closed_in_mid_text(target: RunningTarget) -> None:
    slot, session_id = target.open(request_of(PROMPTS[0], max_tokens=256))
    while not slot.committed(session_id):
        target.look("the first token")
    target.close(slot, session_id)
    assert slot.committed(session_id) < 256
    assert len(target.ask([request_of(PROMPTS[1])])[0].tokens) == MAX_TOKENS


def test_only_the_request_fails_when_vllm_refuses_it(
    target: RunningTarget, right: list[Answer]
) -> None:
    bad = request_of(PROMPTS[0], logit_bias=((3, 1.0),))
    failed, served = target.ask([bad, request_of(PROMPTS[1])])
    assert failed.finish is Finish.FAILED
    assert served.tokens == right[1].tokens


RESUMED: list[dict[str, Any]] = [
    {},
    {"frequency_penalty": 0.4},
    {**guided("regex", "[a-z ]{500}"), "end_ids": (0,)},
    {"pacing": "autoregressive", "temperature": 0.9, "seed": 5},
]


def test_texts_go_on_when_vllm_is_killed_in_mid_text(target: RunningTarget) -> None:
    requests = [
        request_of(prompt, max_tokens=200, **fields)
        for prompt, fields in zip(PROMPTS, RESUMED * 2, strict=True)
    ]
    wanted = target.ask([plainly(one) for one in requests])
    opened = [target.open(request) for request in requests]
    while not all(slot.committed(session_id) > 4 for slot, session_id in opened):
        target.look("every text is begun")
    os.kill(target.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="ended with -9"):
        target.until_ended()
    begun = [slot.committed(session_id) for slot, session_id in opened]
    assert min(begun) < 200
    target.target.close()
    target.start()
    for (slot, session_id), request, right in zip(opened, requests, wanted, strict=True):
        while slot.finish(session_id) is Finish.RUNNING:
            target.look("the texts end")
        assert target.answer(slot, session_id, request).tokens == right.tokens
        target.close(slot, session_id)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tensor_paralel_size": 2}, "did you mean tensor_parallel_size"),
        ({"quantization": "awq"}, "vLLM cannot load it"),
    ],
)
def test_vllm_is_not_started_when_it_refuses_an_argument(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    target = {"vllm": arguments}
    with pytest.raises(EngineError, match=said), running_target(tmp_path, target=target):
        pass
