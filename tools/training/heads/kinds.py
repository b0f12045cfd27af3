"""The kinds of heads that are trained here, by the name that `--kind` takes."""

from __future__ import annotations

from training.heads.ctc import CtcTraining
from training.heads.dspark import DFlashTraining, DSparkTraining
from training.heads.eagle3 import Eagle3Training
from training.heads.kind import Kind
from training.heads.pard2 import Pard2Training
from training.heads.specformer import SpecFormerTraining

KINDS: dict[str, type[Kind]] = {
    "eagle3": Eagle3Training,
    "pard2": Pard2Training,
    "dspark": DSparkTraining,
    "dflash": DFlashTraining,
    "specformer": SpecFormerTraining,
    "ctc": CtcTraining,
}
