"""What the planner's simulation says of a measured pair on this machine."""

from __future__ import annotations

from card.settings import Settings
from card.speculation.control.measured import best_rows
from card.speculation.pacing import PLAIN
from importing.measuring import Measured
from planning.candidates import Text
from planning.checking import BUS_MS, WAKE_MS
from planning.costs import MeasuredCost
from planning.scenario import Delays, Machinery, Pacing, Speculation
from planning.simulation import simulate


def predicted_speed_up(settings: Settings, measured: Measured) -> float:
    """Tokens per second of the settings' pacing relative to autoregressive decoding, one stream, in
    process.

    Both models are simulated with the costs of passes that they had alone: with cores and memory
    that they must share, it is less.
    """
    machinery = Machinery(
        MeasuredCost(measured.target_costs_ms),
        MeasuredCost(measured.draft_costs_ms),
        Delays(bus=BUS_MS, wake=WAKE_MS),
    )
    texts = [Text(record, measured.foresight) for record in measured.foresight.texts]

    def speed(pacing: Pacing, config: Speculation) -> float:
        runs = [simulate(text, pacing, config, machinery, seed) for seed, text in enumerate(texts)]
        return sum(run.tokens for run in runs) / sum(run.ms for run in runs)

    pacing = settings.decoding
    return speed(pacing, _speculation(settings, measured)) / speed(PLAIN, Speculation(rows=1))


def _speculation(settings: Settings, measured: Measured) -> Speculation:
    """As the server would run it."""
    config = settings.speculation
    rows = best_rows(measured.target_costs_ms) if config.rows == "auto" else config.rows
    return Speculation(
        width=config.width,
        depth=config.depth,
        rows=rows,
        ngram_tokens=config.ngram_tokens,
        num_draft_tokens=config.num_draft_tokens,
        growth=config.growth,
        nodes=settings.cache.nodes,
    )
