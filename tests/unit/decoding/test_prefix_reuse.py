"""A text that begins like one before is not read again, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import pytest
from fake_engine import EMPTY_PATH, FakeEngine, FakeModel, extended, fake
from one_process import GREEDY, OneProcess, autoregressive, request_of, settings_of

from card.cache import Finish, SlotRequest
from card.engines.interface import BLOCK
from card.sampling import SamplingParameters

MODEL = FakeModel()
SAMPLED = SamplingParameters(temperature=0.9, seed=7, repetition_penalty=1.2)
PROMPT = [(3 * at + at // 7) % MODEL.vocabulary for at in range(2 * BLOCK + 5)]
SALT = b"0123456789abcdef"


@pytest.fixture
def both() -> Iterator[OneProcess]:
    target, draft = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    with OneProcess(target, draft, settings_of()) as both:
        yield both


def run(both: OneProcess, request: SlotRequest) -> tuple[list[int], int]:
    """The text, which is right, and how much of it the target did not read, for it was kept."""
    rows = fake(both.target_engine).read
    before = len(rows)
    stream = both.open(request)
    (output,) = both.run([stream])
    reused = stream.counters.reused_tokens
    both.close([stream])
    assert output == autoregressive(MODEL, request)
    prompt = paths_of(request.prompt.tolist())
    assert {path for _, path in rows[before:]} & set(prompt) == set(prompt[reused:])
    return output, reused


def paths_of(text: list[int]) -> list[int]:
    """Hash of each beginning of the text."""
    return list(accumulate(text, extended, initial=EMPTY_PATH))[1:]


def whole(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


@pytest.mark.parametrize("parameters", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("decoding", ["card", "autoregressive", "draft_then_verify"])
def test_the_next_turn_begins_behind_the_last(
    both: OneProcess, decoding: str, parameters: SamplingParameters
) -> None:
    output, reused = run(both, request_of(PROMPT, 40, decoding, parameters))
    assert reused == 0
    turn = [*PROMPT, *output, 1, 2, 3]
    _, reused = run(both, request_of(turn, 20, decoding, parameters))
    assert reused == whole(len(PROMPT) + len(output) - 1)


def test_the_draft_does_not_read_it_either(both: OneProcess) -> None:
    output, _ = run(both, request_of(PROMPT, 40))
    rows = fake(both.draft_engine).read
    before, turn = len(rows), [*PROMPT, *output, 1, 2, 3]
    run(both, request_of(turn, 20))
    read = {path for _, path in rows[before:]} & set(paths_of(turn))
    assert read == set(paths_of(turn)[whole(len(turn) - 4) :])


def test_a_fork_begins_where_it_parts_and_a_whole_prompt_before_its_last_token(
    both: OneProcess,
) -> None:
    run(both, request_of(PROMPT, 4))
    fork = [*PROMPT[: BLOCK + 3], 9, 9, 9]
    assert run(both, request_of(fork, 4))[1] == BLOCK
    assert run(both, request_of(PROMPT[: 2 * BLOCK], 4))[1] == BLOCK


def test_a_request_may_do_without(both: OneProcess) -> None:
    request = request_of(PROMPT, 4)
    run(both, replace(request, reuses_kv=False))
    assert run(both, request)[1] == 0, "and then its text is not kept either"
    assert run(both, replace(request, reuses_kv=False))[1] == 0


def test_nothing_is_shared_between_salts(both: OneProcess) -> None:
    request = request_of(PROMPT, 4)
    run(both, replace(request, salt=SALT))
    assert run(both, request)[1] == 0
    assert run(both, replace(request, salt=SALT))[1] == 2 * BLOCK


def test_a_scored_prompt_is_read_whole(both: OneProcess) -> None:
    request = request_of(PROMPT, 4)
    run(both, request)
    assert run(both, replace(request, prompt_log_probabilities=True, likeliest=1))[1] == 0


def test_a_text_given_up_as_broken_is_not_kept(both: OneProcess) -> None:
    stream = both.open(request_of(PROMPT, 60))
    while len(stream.output) < 40:
        both.target.step()
    stream.slot._record["finish"] = Finish.FAILED
    stream.slot._record["finish_length"] = stream.slot._record["committed"]
    both.close([stream])
    longer = [*PROMPT, *stream.output]
    assert run(both, request_of(longer, 4))[1] == 2 * BLOCK, "its prompt alone, read without harm"
