"""What an engine offers to be examined at load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from typing_extensions import Self

from card.engines.interface import Engine
from card.engines.options import EngineOptions
from card.engines.row_costs import RowCosts


class ConfigurableEngine(Engine, Protocol):
    """An engine whose buffers can be laid out anew around the same weights."""

    row_invariant: bool

    @property
    def variants(self) -> Sequence[EngineOptions]:
        """What to try, cheapest first, until rows no longer influence each other."""

    def know_costs(self, costs: RowCosts) -> None: ...

    @property
    def awaits_decoders(self) -> bool:
        """Whether others, which compute sooner, take the place of its decoders soon."""

    @property
    def options(self) -> EngineOptions: ...

    @property
    def costed_rows(self) -> Sequence[int]:
        """Rows of passes to measure: others are padded to these, or cost about as much."""

    @property
    def examination_s(self) -> float:
        """Seconds for the check of its rows."""

    def reconfigured(self, options: EngineOptions) -> Self: ...


AnyEngine = TypeVar("AnyEngine", bound=ConfigurableEngine)
