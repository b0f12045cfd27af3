"""What a request may not ask of vLLM, by vLLM's own checks and by what speculation does there."""

from __future__ import annotations

from typing import ClassVar

from card.engines.guest.admission import Asked, Obstacle

MOST_TEMPERATURE = 2.0
MOST_PENALTY = 2.0
"""vLLM refuses a presence or frequency penalty above this, or below its negative."""


class VllmRules:
    """The rules of vLLM 0.32.

    speculates  vLLM was started with speculation, which forbids some parameters to every request
    """

    title: ClassVar[str] = "vLLM"
    ngrams: ClassVar[bool] = True
    refuses: ClassVar[bool] = False

    def __init__(self, *, speculates: bool) -> None:
        self._speculates = speculates

    def obstacles(self, asked: Asked) -> list[Obstacle]:
        parameters, speculates = asked.parameters, self._speculates
        beside = ": vLLM has no such parameter beside speculation (speculation.rows above 1)"
        found = [
            # whether it is in the way, its field, what is allowed, whether vLLM refuses it
            (
                parameters.temperature > MOST_TEMPERATURE,
                "temperature",
                f"at most {MOST_TEMPERATURE:g}, as vLLM takes it",
                True,
            ),
            *(
                (
                    abs(getattr(parameters, name)) > MOST_PENALTY,
                    name,
                    f"from {-MOST_PENALTY:g} to {MOST_PENALTY:g}, as vLLM takes it",
                    True,
                )
                for name in ("presence_penalty", "frequency_penalty")
            ),
            (speculates and parameters.min_p > 0, "min_p", f"absent or 0{beside}", True),
            (
                speculates and bool(parameters.logit_bias),
                "logit_bias_ids",
                f"absent{beside}",
                True,
            ),
            (
                asked.guided and parameters.min_tokens > 0,
                "min_tokens",
                "absent or 0 beside a guide, and end_id not -1: vLLM may allow no token there",
                True,
            ),
            (
                asked.seeded and not parameters.is_greedy,
                "seed",
                "absent when temperature is above 0: vLLM's noise depends on the candidates",
                False,
            ),
        ]
        return [Obstacle(field, allowed, never) for asks, field, allowed, never in found if asks]
