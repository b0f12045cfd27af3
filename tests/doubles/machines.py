"""Machines for the simulated clock, and how long texts take on them."""

from __future__ import annotations

from collections.abc import Iterable

from one_process import request_of
from simulated_machine import Machine, SimulatedMachine

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
    "AVX-512": Machine(
        {1: 8.5, 4: 12, 8: 16, 16: 24, 32: 40}, {1: 14, 4: 21, 8: 28, 16: 44, 32: 76}, (1.5, 2)
    ),
    "AVX2": Machine(
        {1: 20, 4: 32, 8: 46, 16: 74, 32: 130}, {1: 37, 4: 60, 8: 88, 16: 140, 32: 250}, (3, 4.5)
    ),
    "8 cores": Machine(
        {1: 4, 4: 4.4, 8: 5.2, 32: 11}, {1: 4.4, 4: 4.9, 8: 5.8, 32: 12.5}, (0.8, 1)
    ),
    "32 cores": Machine({1: 2, 8: 2.3, 32: 3.8}, {1: 2.05, 8: 2.4, 32: 3.9}, (0.6, 0.65)),
    # Passes as an H200 showed them (docs/gpu.md).
    "one GPU": Machine({1: 4.92, 32: 5.58}, {1: 6.8, 32: 7.7}, (0.95, 1.3), step=0.2),
    "two GPUs": Machine(
        {1: 4.92, 32: 5.58}, {1: 4.92, 32: 5.58}, (0.95, 0.95), step=0.2, apart=True
    ),
}


def written_ms(
    server: SimulatedMachine,
    texts: Iterable[int],
    tokens: int,
    *,
    decoding: str = "auto",
    streams: int = 1,
    temperature: float = 0.0,
) -> float:
    """Milliseconds of these texts, one after the other, each of them `streams` times at once."""
    taken = 0.0
    for text in texts:
        parameters = SamplingParameters(temperature=temperature, seed=text)
        prompts = [[text % 23 + 1, stream % 23, 3] for stream in range(streams)]
        taken += server.write(
            [request_of(prompt, tokens, decoding, parameters) for prompt in prompts]
        )
    return taken
