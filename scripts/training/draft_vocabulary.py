"""Which ids a draft is to rank: the most frequent ones of the target's own texts.

FR-Spec (Zhao et al., arXiv 2502.14856) keeps a quarter of a large vocabulary so. It changes how
fast a text comes and never the text.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from training.distillation import OwnTexts

NAME = "draft_vocabulary.json"
"""As `card.engines.draft_vocabulary` reads it, in the draft's folder."""


def write_draft_vocabulary(texts: OwnTexts, vocabulary: int, share: float, folder: Path) -> None:
    """List the most frequent ids of `texts`, such a share of the vocabulary; with 1 write none."""
    file = folder / NAME
    if share == 1:
        file.unlink(missing_ok=True)
        return
    counts = np.bincount(texts.reshape(-1), minlength=vocabulary)
    often = np.argsort(-counts, kind="stable")[: max(1, round(share * vocabulary))]
    file.write_text(json.dumps({"ids": np.sort(often).tolist()}) + "\n", "utf-8")
