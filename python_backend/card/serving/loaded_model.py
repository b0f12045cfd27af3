"""What runs a role's model, as the settings say: an engine under our loop, or a runtime that
decodes on its own and is followed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal, Protocol

from card.cache import Pool
from card.constraints import GuideError
from card.constraints.compiled import GuidedTokens
from card.constraints.compiler import GuideCompiler
from card.decoding import TargetLoop
from card.drafting import DraftLoop
from card.engines import load_engine
from card.serving.engine_process import Loop
from card.serving.geometry import pool_geometry
from card.settings import Settings

log = logging.getLogger(__name__)

Role = Literal["draft", "target"]


class LoadedModel(Protocol):
    """A model in this process."""

    def loop(self, pool: Pool) -> Loop:
        """What works for `pool`, and no longer for an earlier one."""

    def close(self) -> None:
        """Let go of the model."""


def load_model(settings: Settings, role: Role, server_pid: int) -> LoadedModel:
    """Load the model of `role`. Raises `EngineError` saying what is missing or does not fit."""
    model = settings.draft if role == "draft" else settings.target
    if settings.engine_of(model) == "tensorrt_llm":
        from card.engines.tensorrt_llm.loading import TensorRTModel

        return TensorRTModel(settings, role, pool_geometry(settings), server_pid)
    return _UnderOurLoop(settings, role)


class _UnderOurLoop:
    def __init__(self, settings: Settings, role: Role) -> None:
        self._settings = settings
        self._role = role
        self._engine = load_engine(settings, role, quickly=True)
        self._guides = _guide_compiler(settings.target.path)

    def loop(self, pool: Pool) -> Loop:
        loop = DraftLoop if self._role == "draft" else TargetLoop
        return loop(self._engine, pool, self._settings, self._guides)

    def close(self) -> None:
        """The engine goes with the process."""


def _guide_compiler(target: Path) -> GuideCompiler | None:
    """Of the target's tokens, which are the pair's; None if its texts cannot be guided."""
    try:
        return GuideCompiler(GuidedTokens.load(target))
    except GuideError as error:
        log.warning("guided decoding is not offered: %s", error)
        return None
