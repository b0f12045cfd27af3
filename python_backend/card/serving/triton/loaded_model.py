"""Loads a role's model, as the settings say: an engine under our loop, or a runtime that decodes on
its own and that our code follows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from card.cache import Pool
from card.constraints.compiler import GuideCompiler
from card.decoding import TargetLoop
from card.decoding.from_settings import ngram_memory
from card.drafting import DraftLoop, make_drafters, token_pass_ms
from card.engines import Engine
from card.serving.geometry import pool_geometry
from card.serving.triton.engine_process import Loop
from card.settings import Role, Settings

if TYPE_CHECKING:  # as in `card.constraints.compiler`
    from card.constraints.compiled import GuidedTokens


class LoadedModel(Protocol):
    """A model in this process."""

    def make_loop(self, pool: Pool) -> Loop:
        """The loop that works for `pool`, and no longer for an earlier one."""

    def close(self) -> None:
        """Unload the model."""


def load_model(settings: Settings, role: Role, server_pid: int) -> LoadedModel:
    """Load the model of `role`. Raises `EngineError` naming what is missing or does not fit."""
    model = settings.draft if role == "draft" else settings.target
    if settings.engine_of(model) == "tensorrt_llm":
        from card.engines.tensorrt_llm.chains import TensorRTChains
        from card.tensorrt_llm.loading import load_runtime

        runtime = load_runtime(settings, role, pool_geometry(settings), server_pid)
        if role == "draft":
            chains = TensorRTChains(runtime, settings.draft.tensorrt_llm.stall_timeout_s)
            return _Draft(chains, settings, None, runtime.shutdown)
        from card.tensorrt_llm.target import TensorRTTarget

        return TensorRTTarget(runtime, settings)
    if settings.engine_of(model) == "vllm":
        from card.vllm.process import VllmProcess

        return VllmProcess(settings, role, server_pid)
    from card.loading import load_engine, load_small_draft

    engine = load_engine(settings, role, quickly=True)
    guides = GuideCompiler(partial(_guided_tokens, settings.target.path))
    if role == "draft":
        small = load_small_draft(settings, quickly=True)
        pass_ms = token_pass_ms(engine, settings)
        return _Draft(engine, settings, guides, small=small, pass_ms=pass_ms)
    return _Target(engine, settings, guides)


def _guided_tokens(target: Path) -> GuidedTokens:
    """The tokens for guides: those of the target, which the draft shares."""
    from card.constraints.compiled import GuidedTokens

    return GuidedTokens.load(target)


class _Target:
    """One of our engines under our loop. The engine is unloaded with the process."""

    def __init__(self, engine: Engine, settings: Settings, guides: GuideCompiler) -> None:
        self._engine = engine
        self._settings = settings
        self._guides = guides
        self._ngrams = ngram_memory(settings, engine.vocabulary)

    def make_loop(self, pool: Pool) -> Loop:
        return TargetLoop(self._engine, pool, self._settings, self._guides, self._ngrams)

    def close(self) -> None: ...


class _Draft:
    """The drafter's model, under the draft's loop.

    close    unloads the model
    small    the engine of `draft_small`, if the drafter needs it
    pass_ms  as of `DraftLoop`
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        guides: GuideCompiler | None,
        close: Callable[[], None] = lambda: None,
        *,
        small: Engine | None = None,
        pass_ms: float = 0.0,
    ) -> None:
        self._drafters = make_drafters(model, settings, small)
        self._guides = guides
        self._apart = settings.draft_is_apart
        self._pass_ms = pass_ms
        self._loop: DraftLoop | None = None
        self._close = close

    def make_loop(self, pool: Pool) -> Loop:
        if self._loop is not None:
            self._loop.abandon()
        self._loop = DraftLoop(
            self._drafters, pool, self._guides, apart=self._apart, pass_ms=self._pass_ms
        )
        return self._loop

    def close(self) -> None:
        self._close()
