"""A draft that knows nothing: the shape of the pair's draft, random weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file, save_file

_SPREAD = 0.02
_SEED = 0


@contextmanager
def unrelated_draft(draft: Path) -> Iterator[Path]:
    """A temporary checkpoint beside which the pair's own draft is a good one."""
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
