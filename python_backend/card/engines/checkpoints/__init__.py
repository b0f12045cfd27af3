"""Models as files: their tensors, read and checked against the architecture."""

from card.engines.checkpoints.ahead import ahead
from card.engines.checkpoints.kept_as import kept_lines
from card.engines.checkpoints.matrices import (
    DenseMatrix,
    GroupedMatrix,
    JoinedMatrix,
    Matrix,
    stacked,
)
from card.engines.checkpoints.opening import open_checkpoint
from card.engines.checkpoints.quantised import QuantisedCheckpoint, group_of, quantised
from card.engines.checkpoints.regrouped import in_bytes
from card.engines.checkpoints.smoothed import SmoothedCheckpoint, worth_smoothing
from card.engines.checkpoints.tensors import Checkpoint, LayerTensors, LinearTensors, Norm
