"""The kinds of heads that are trained here, by the name that `--kind` takes."""

from __future__ import annotations

from training.heads.eagle3 import Eagle3Training
from training.heads.kind import Kind

KINDS: dict[str, type[Kind]] = {
    "eagle3": Eagle3Training,
}
