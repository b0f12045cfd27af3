"""The pair's engines, one for each role and thread count."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

from card.engines import Engine, EngineError
from card.engines.calibration import ConfigurableEngine, known_invariant, measure_row_costs
from card.engines.processor import resolve_dtype
from card.loading import choose_engine, load_engine
from card.settings import ModelSettings, Settings

Role = Literal["draft", "draft_small", "target"]


class Engines:
    """Loads a model when a number of threads is first asked for, and keeps it.

    A target that is loaded as served lends its weights to numbers that divide its threads. Raises
    `EngineError` if the settings name an engine that loads no checkpoint.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[Settings, Literal["draft", "target"]], Engine] = load_engine,
    ) -> None:
        self._settings = settings
        self._load_as_served = load
        self._loaded: dict[tuple[Role, int, bool], ConfigurableEngine] = {}
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

    def on(self, role: Role, threads: int, *, spreads: bool = False) -> ConfigurableEngine:
        """The engine of `role` for so many threads; `spreads`: for more while it is alone, as in
        production. Raises `EngineError`."""
        key = (role, threads, spreads)
        if self._model(role).device != "cpu":
            key = (role, 0, False)  # threads change nothing of a device's passes
        if key not in self._loaded:
            self._loaded[key] = self._load(role, threads, spreads=spreads)
        return self._loaded[key]

    def _load(self, role: Role, threads: int, *, spreads: bool) -> ConfigurableEngine:
        served = None if spreads else self._loaded.get((role, self._settings.target.threads, True))
        alone = 0 if served is None else served.options.threads_alone
        if served is not None and alone and alone % threads == 0:
            return _on_threads(served, threads)
        changes = {"threads": threads}
        if role == "target" and not spreads:
            changes["threads_alone"] = threads
        model = self._model(role).model_copy(update=changes)
        loads_as: Literal["draft", "target"] = "target" if role == "target" else "draft"
        engine = self._load_as_served(self._settings.model_copy(update={loads_as: model}), loads_as)
        return cast(ConfigurableEngine, engine)

    def _model(self, role: Role) -> ModelSettings:
        model: ModelSettings = getattr(self._settings, role)
        return model


def _on_threads(served: ConfigurableEngine, threads: int) -> ConfigurableEngine:
    """On so many threads with the same weights, which one system leaves in the caches for the
    next."""
    engine = known_invariant(served, replace(served.options, threads=threads, threads_alone=0))
    engine.know_costs(measure_row_costs(engine))
    return engine


def let_torch_use(threads: int) -> None:
    """Torch has one thread count for the whole process, whatever its engines were loaded with."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
