"""What `auto` promises on whole machines: the product's own loops on a simulated clock."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from one_process import request_of
from simulated_machine import Load, Machine, SimulatedMachine

from card.sampling import SamplingParameters

MACHINES = {
    # Two cores each, measured (benchmarks/NOTES.md).
    "AVX512-BF16": Machine(
        {1: 7.5, 4: 8.5, 8: 10, 16: 14, 32: 24},
        {1: 11, 4: 13.2, 8: 16.5, 16: 24, 32: 42},
        (1.3, 1.8),
    ),
    "AVX512-VNNI": Machine(
        {1: 9.8, 4: 13.8, 8: 18.1, 16: 25.2, 32: 42},
        {1: 17.7, 4: 24, 8: 30, 16: 50, 32: 90},
        (1.6, 2.3),
    ),
    # Reckoned from these: no such machine was measured.
    "AVX2": Machine(
        {1: 20, 4: 32, 8: 46, 16: 74, 32: 130},
        {1: 37, 4: 60, 8: 88, 16: 140, 32: 250},
        (3, 4.5),
    ),
    "8 cores": Machine(
        {1: 4, 4: 4.4, 8: 5.2, 32: 11}, {1: 4.4, 4: 4.9, 8: 5.8, 32: 12.5}, (0.8, 1)
    ),
    # Passes as an H200 showed them.
    "one GPU": Machine({1: 4.92, 32: 5.58}, {1: 6.8, 32: 7.7}, (0.95, 1.3), step=0.2),
    "two GPUs": Machine(
        {1: 4.92, 32: 5.58}, {1: 4.92, 32: 5.58}, (0.95, 0.95), step=0.2, apart=True
    ),
}
USELESS, GOOD = 0.0, 0.9


def written_ms(
    server: SimulatedMachine, texts: Iterable[int], tokens: int, decoding: str = "auto"
) -> float:
    """Milliseconds of these texts, one after the other."""
    return sum(
        server.write([request_of([text % 23 + 1, 0, 3], tokens, decoding, SamplingParameters())])
        for text in texts
    )


def plain_ms(machine: str, tokens: int) -> float:
    """Of decoding alone."""
    with SimulatedMachine(MACHINES[machine], agreement=USELESS, noise=0.0) as server:
        return written_ms(server, [0], 16, "autoregressive") * tokens / 16


@pytest.mark.parametrize("machine", MACHINES)
def test_auto_when_the_draft_is_useless_loses_little(machine: str) -> None:
    """A tenth at most, of the first four texts that a server writes."""
    with SimulatedMachine(MACHINES[machine], agreement=USELESS) as server:
        taken = written_ms(server, range(4), 96)
    assert taken < plain_ms(machine, 4 * 96) / 0.9


@pytest.mark.parametrize("machine", MACHINES)
def test_auto_when_the_draft_is_good_gains(machine: str) -> None:
    with SimulatedMachine(MACHINES[machine], agreement=GOOD) as server:
        taken = written_ms(server, range(4), 96)
    assert taken < plain_ms(machine, 4 * 96) / 1.05


@pytest.mark.parametrize("wrong", [0.5, 3.0])
def test_auto_when_load_timed_passes_wrong_still_gains(wrong: float) -> None:
    machine, load = "AVX512-VNNI", Load({1: wrong})
    with SimulatedMachine(MACHINES[machine], agreement=GOOD, load=load) as server:
        taken = written_ms(server, range(4), 96)
    assert taken < plain_ms(machine, 4 * 96) / 1.05


def test_text_when_the_clock_is_simulated_is_that_of_decoding_alone() -> None:
    texts = []
    for decoding in ("autoregressive", "auto", "card", "draft_then_verify"):
        with SimulatedMachine(MACHINES["one GPU"], agreement=GOOD) as server:
            written_ms(server, [1], 64, decoding)
            texts.append(server.last_text)
    assert len(texts[0]) == 64
    assert texts[1:] == 3 * texts[:1]
