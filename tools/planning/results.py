"""What the planner reads of a benchmark's result, and how it turns that into step costs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from bench.systems import SYSTEMS, System
from card.speculation.drafters.growth import GROWTHS, GrowthConfig
from card.speculation.pacing import PACINGS
from card.speculation.sources import WITHOUT_DRAFT
from planning.errors import PlanError
from planning.scenario import DRAFTERS, Pacing


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MeasuredRow(_Read):
    """One system with one setting at one temperature; the fields are the benchmark's own.

    rows_adapt         each pass took as many rows as were worth it; None in older results
    draft_ms_per_pass  milliseconds of a pass of the draft while it ran; None: it made none
    draft_idle_share   of the time from request to last token, the draft had nothing to do
    """

    system: str
    where: str
    temperature: float
    threads: int
    rows: int
    gamma: int | None = None
    width: int | None = None
    rows_adapt: bool | None = None
    tokens_per_s: float
    tokens_per_step: float
    time_to_first_token_ms: float
    ms_per_step: float | None = None
    query_ms: float | None = None
    forward_ms: float | None = None
    verify_ms: float | None = Field(
        default=None, validation_alias=AliasChoices("verify_ms", "walk_ms")
    )
    draft_ms_per_pass: float | None = None
    draft_idle_share: float | None = None

    @property
    def pacing(self) -> Pacing | None:
        """The pacing of a system that the simulation knows; None for others."""
        return None if self.built is None else self.built.decoding

    @property
    def built(self) -> System | None:
        """How the benchmark builds it, if that can be simulated: n-grams, alone or beside a draft
        model that grows a tree."""
        system = SYSTEMS.get(self.system)
        if system is None and self.system in PACINGS:
            system = System("", "", decoding=self.system)
        known = (*DRAFTERS, *WITHOUT_DRAFT)
        return system if system is not None and _drafter_of(system) in known else None

    @property
    def drafter(self) -> str:
        """What makes candidates."""
        assert self.built is not None
        return _drafter_of(self.built)

    @property
    def drafts(self) -> bool:
        """Whether a draft does."""
        return self.pacing is not None and PACINGS[self.pacing].drafts and self.drafter in DRAFTERS

    @property
    def around_ms(self) -> float | None:
        """Milliseconds of a target step besides its forward pass and its wait for the draft."""
        if self.ms_per_step is None or self.query_ms is None or self.verify_ms is None:
            return None
        if self.waits_for_draft:
            return self.query_ms + self.verify_ms
        assert self.forward_ms is not None
        return self.ms_per_step - self.forward_ms

    def overall_tokens_per_s(self, max_tokens: int) -> float | None:
        """Tokens per second of all texts together, as means of steps and first tokens give it.

        The benchmark's `tokens_per_s` is the median over texts. Where texts differ, or the machine
        did, the two part, and step costs are means: this is the figure that they can explain.
        """
        if self.ms_per_step is None:
            return None
        steps = max_tokens / self.tokens_per_step - 1
        return 1e3 * max_tokens / (self.time_to_first_token_ms + steps * self.ms_per_step)

    @property
    def waits_for_draft(self) -> bool:
        return self.pacing is not None and PACINGS[self.pacing].waits


def _drafter_of(system: System) -> str:
    drafter: str = system.speculation.get("drafter", next(iter(DRAFTERS)))
    return drafter


_STOCK = GrowthConfig()
"""For older results, which do not tell all of it."""


class _Speculation(_Read):
    width: int
    depth: int
    ngram_tokens: int = Field(validation_alias=AliasChoices("ngram_tokens", "lookahead"))
    parcel: int = 4
    proposals: str = WITHOUT_DRAFT[0]
    rows: int | Literal["auto"]
    growth: str
    siblings: tuple[int, ...] = tuple(_STOCK.siblings)
    fan_out: int = _STOCK.fan_out
    doubt: float = _STOCK.doubt
    doubt_branches: int = _STOCK.doubt_branches

    @field_validator("growth")
    @classmethod
    def _is_simulated(cls, growth: str) -> str:
        if growth not in GROWTHS:
            raise ValueError(f"{growth} is not simulated; known: {', '.join(GROWTHS)}")
        return growth

    @property
    def growth_config(self) -> GrowthConfig:
        return GrowthConfig(self.siblings, self.fan_out, self.doubt, self.doubt_branches)


class _Cache(_Read):
    nodes: int


class _Model(_Read):
    path: Path
    threads: int


class _Settings(_Read):
    speculation: _Speculation
    cache: _Cache
    target: _Model
    draft: _Model


class Result(_Read):
    """A result of the benchmark, as far as a simulation needs it.

    prompt_numbers  places in the file of the prompts that were measured; None in older results,
                    which cannot be simulated
    target_row_costs_ms, target_alone_share
                    what CARD chose its rows by; None in older results
    """

    command: str
    date: str
    settings: _Settings
    prompts: str
    prompt_numbers: list[int] | None = None
    max_tokens: int
    dtype: str | None = None
    row_costs_ms: dict[int, dict[int, float]]
    target_row_costs_ms: dict[int, float] | None = None
    target_alone_share: float = 1.0
    rows: list[MeasuredRow]

    @classmethod
    def read(cls, path: Path) -> Result:
        """Raises `PlanError` saying which field is missing or wrong."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{path} cannot be read: {error}") from error
        except ValidationError as error:
            (problem, *_) = error.errors()
            field = ".".join(map(str, problem["loc"])) or "the file"
            raise PlanError(
                f"{path}: {field}: {problem['msg']}; a result of ./scripts/bench suite is needed"
            ) from error

    @property
    def texts(self) -> list[int]:
        """The numbers of the prompts. Raises `PlanError` if the result does not tell them."""
        if self.prompt_numbers is None:
            raise PlanError("this result does not say which prompts it took: measure again")
        return self.prompt_numbers

    def beside(self, row: MeasuredRow, system: str) -> MeasuredRow:
        """The best setting of a system in process, at the temperature of `row`."""
        for other in self.rows:
            same = other.temperature == row.temperature
            if other.system == system and other.where == "in_process" and same:
                return other
        raise PlanError(
            f"the result has no figures of {system} in process at temperature {row.temperature:g}, "
            "and without them no step costs"
        )
