"""Drafts made of the pair's own: one that is smaller, and one that knows nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from card.settings import Settings
from model_files.opening import is_gguf
from training.cutting import cut

_SPREAD = 0.02
_SEED = 0


@contextmanager
def with_small_draft(settings: Settings) -> Iterator[Settings]:
    """Settings whose `draft_small` is there, as far as one can be made of the draft."""
    small, draft = settings.draft_small, settings.draft
    if small.path.exists() or is_gguf(draft.path):
        yield settings
        return
    with TemporaryDirectory(prefix="card-bench-draft-small-") as home:
        cut(draft.path, Path(home), [0])
        made = small.model_copy(update={"path": Path(home)})
        yield settings.model_copy(update={"draft_small": made})


@contextmanager
def unrelated_draft(draft: Path) -> Iterator[Path]:
    """A temporary checkpoint beside which the pair's own draft is a good one."""
    import torch  # seconds, which no other figure needs
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(_SEED)
    with TemporaryDirectory(prefix="card-bench-draft-") as home:
        for file in draft.iterdir():
            if file.suffix != ".safetensors":
                shutil.copy(file, home)
                continue
            weights = load_file(file)
            for name, weight in weights.items():
                if weight.dim() > 1:  # norms stay as they are
                    values = torch.randn(weight.shape, generator=generator) * _SPREAD
                    weights[name] = values.to(weight.dtype)
            save_file(weights, Path(home) / file.name, metadata={"format": "pt"})
        yield Path(home)
