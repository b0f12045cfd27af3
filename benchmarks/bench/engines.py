"""The pair's engines, one for each role and thread count."""

from __future__ import annotations

import sys
from typing import Literal, Protocol, cast

from card.engines import EngineError, load_engine
from card.engines.architecture import Architecture
from card.engines.calibration import ConfigurableEngine, measure_row_costs
from card.engines.loading import choose_engine
from card.engines.processor import resolve_dtype
from card.settings import ModelSettings, Settings

Role = Literal["draft", "target"]


class CheckpointEngine(ConfigurableEngine, Protocol):
    """An engine that runs a checkpoint itself, on so many threads as it was loaded with."""

    @property
    def architecture(self) -> Architecture: ...

    @property
    def kv_bytes_per_session(self) -> int: ...


class Engines:
    """Loads a model when it is first asked for with a number of threads, and keeps it.

    Raises `EngineError` where the settings name an engine that is no checkpoint's.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded: dict[tuple[Role, int, bool], CheckpointEngine] = {}
        self._probes: dict[int, CheckpointEngine] = {}
        for role, name in self.names.items():
            if name == "tensorrt_llm":
                raise EngineError(
                    f"the benchmark runs checkpoints on the processor, not {name}; "
                    f"set {role}.engine to auto, openvino or torch"
                )

    @property
    def names(self) -> dict[str, str]:
        """Which engine runs each model."""
        models = {"target": self._settings.target, "draft": self._settings.draft}
        return {role: choose_engine(self._settings, model) for role, model in models.items()}

    @property
    def dtype(self) -> str:
        """What the target's matrices are stored in."""
        return resolve_dtype(self._settings.target.dtype)

    def on(self, role: Role, threads: int, *, spreads: bool = False) -> CheckpointEngine:
        """The engine of `role` for so many threads; `spreads`: for more while it is alone, as in
        production. Raises `EngineError`."""
        key = (role, threads, spreads)
        if key not in self._loaded:
            model: ModelSettings = getattr(self._settings, role)
            changes = {"threads": threads}
            if role == "target" and not spreads:
                changes["threads_alone"] = threads
            model = model.model_copy(update=changes)
            engine = load_engine(self._settings.model_copy(update={role: model}), role)
            self._loaded[key] = cast(CheckpointEngine, engine)
        return self._loaded[key]

    def probe(self, threads: int) -> CheckpointEngine:
        """The target with buffers for one session, knowing no costs: it pads no pass to the rows
        of the one before, so every pass takes what its own rows take."""
        if threads not in self._probes:
            as_served = self._loaded.get(("target", threads, True))
            engine = as_served or self.on("target", threads)
            self._probes[threads] = engine.reconfigured(engine.options)
        return self._probes[threads]

    def row_costs_ms(self, threads: int) -> dict[int, float]:
        """Milliseconds of a target pass by its rows, measured now."""
        probe = self.probe(threads)
        let_torch_use(threads)
        return measure_row_costs(probe).pass_ms


def let_torch_use(threads: int) -> None:
    """Torch has one thread count for the whole process, whatever its engines were loaded with."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
