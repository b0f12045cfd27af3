"""Models as files: their tensors, read and checked against the architecture."""

from card.engines.checkpoints.kept_as import kept_lines
from card.engines.checkpoints.matrices import (
    DenseMatrix,
    GroupedMatrix,
    JoinedMatrix,
    Matrix,
    in_bytes,
    stacked,
)
from card.engines.checkpoints.opening import ahead, open_checkpoint
from card.engines.checkpoints.quantised import QuantisedCheckpoint, group_of, quantised
from card.engines.checkpoints.smoothed import SmoothedCheckpoint, worth_smoothing
from card.engines.checkpoints.tensors import Checkpoint, LayerTensors, LinearTensors, Norm
