"""A smaller draft for those who have none: the first layer of the pair's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from card.settings import Settings
from model_files.opening import is_gguf
from training.cutting import cut


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
