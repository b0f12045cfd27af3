"""From settings to a torch engine: threads, buffers, the self-check and the cost curve."""

from __future__ import annotations

from typing import Literal

import torch

from card.engines.interface import EngineError
from card.engines.torch.calibration import make_row_invariant, measure_row_costs
from card.engines.torch.engine import EngineOptions, TorchEngine
from card.engines.vocabulary import check_shared_vocabulary
from card.settings import Settings


def load_torch_engine(settings: Settings, role: Literal["draft", "target"]) -> TorchEngine:
    """Load the model of `role`. Raises `EngineError` saying which file does not fit and why."""
    model = settings.draft if role == "draft" else settings.target
    speculation = settings.speculation
    check_shared_vocabulary(settings.draft.path, settings.target.path)
    torch.set_num_threads(model.threads)
    options = EngineOptions(
        context=settings.limits.context_tokens,
        sessions=settings.cache.slots,
        branches=0,
        pending=settings.cache.nodes,
        dtype=model.dtype,
    )
    if role == "draft":
        return TorchEngine.load(model.path, options)
    branches = speculation.branches if speculation.query == "subtree" else 1
    engine = TorchEngine.load(
        model.path,
        EngineOptions(
            context=options.context,
            sessions=options.sessions,
            branches=branches,
            dtype=model.dtype,
        ),
    )
    engine = make_row_invariant(engine)
    if not engine.row_invariant:
        raise EngineError(
            f"{model.path}: on this machine rows of one pass influence each other in "
            f"{engine.dtype}, so a text could depend on the draft; set target.dtype: float32"
        )
    engine.row_costs_ms = measure_row_costs(engine)
    return engine
