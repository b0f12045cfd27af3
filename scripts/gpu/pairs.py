"""Random pairs of real shapes that agree at a chosen rate, made for one comparison each."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from card.settings import REPOSITORY_ROOT
from gpu.models import Pair

AGREEMENTS = (0.8, 0.6, 0.9)
"""The middle one first: it is the one to have when time is short."""

_UNREAL = "random weights: compute and memory traffic are real, the text is not"


@contextmanager
def aligned_pair(
    shape: str, agreement: float, device: torch.device, scratch: Path
) -> Iterator[Pair]:
    """A pair on disk until it was compared. Raises `aligned.making.AlignmentError`."""
    # transformers takes seconds to import, and only this needs it.
    from transformers.utils.logging import disable_progress_bar

    from aligned.making import make_pair
    from aligned.shapes import SHAPES

    disable_progress_bar()
    folder = Path(tempfile.mkdtemp(prefix="card-pair-", dir=scratch))
    try:
        found = make_pair(
            SHAPES[shape], agreement, folder, REPOSITORY_ROOT / "models/draft", device=device
        )
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        name = f"{shape}, agreement {found.held_out:.2f} (asked {agreement:g}), {_UNREAL}"
        yield Pair(name, folder / "target", folder / "draft")
    finally:
        shutil.rmtree(folder)
