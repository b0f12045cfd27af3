"""Random pairs of real shapes that agree at a chosen rate."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path

import torch

from card.settings import REPOSITORY_ROOT
from gpu.models import Pair

_TOKENIZER = REPOSITORY_ROOT / "tests/pair/draft"
"""Every checkout has it, and it has fewer ids than any of the shapes."""
_UNREAL = "random weights: compute and memory traffic are real, the text is not"


def random_pair(shape: str, agreement: float, device: torch.device, folder: Path) -> Pair:
    """A pair in `folder`, made there unless an earlier phase has finished making it. Raises
    `aligned.making.AlignmentError`."""
    made = folder / "pair.json"
    if not made.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _make(shape, agreement, device, folder)
    found = json.loads(made.read_text(encoding="utf-8"))
    name = f"{shape}, agreement {found['held_out']:.2f} (asked {agreement:g}), {_UNREAL}"
    return Pair(name, folder / "target", folder / "draft")


def _make(shape: str, agreement: float, device: torch.device, folder: Path) -> None:
    # transformers takes seconds to import, and only this needs it.
    from transformers.utils.logging import disable_progress_bar

    from aligned.making import make_pair
    from aligned.shapes import SHAPES

    disable_progress_bar()
    make_pair(SHAPES[shape], agreement, folder, _TOKENIZER, device=device)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
