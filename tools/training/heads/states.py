"""The target, and the hidden states that it computes for a text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from card.engines import EngineError, SequenceTokens
from card.engines.architecture import Architecture, read_architecture
from card.engines.checkpoints import open_checkpoint
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine
from training.errors import TrainingError

_CHUNK = 128


class TappedTarget:
    """A target that computes states.

    embedding  [vocabulary, hidden] float32, scaled as the target scales it
    head       [vocabulary, hidden] float32, the target's own, with which the head's begins
    norm       [hidden] of the norm before it
    """

    def __init__(
        self, directory: Path, taps: tuple[int, ...], window: int, *, bf16: bool = False
    ) -> None:
        """`bf16`: it computes in bfloat16. Raises `TrainingError` for what is no model that runs
        here."""
        try:
            self.architecture: Architecture = read_architecture(directory)
            checkpoint = open_checkpoint(directory, self.architecture)
            dtype = "bfloat16" if bf16 else "float32"
            options = EngineOptions(context=window, sessions=1, dtype=dtype, taps=taps)
            self._engine = TorchEngine.load(directory, options)
        except EngineError as error:
            raise TrainingError(str(error)) from error
        embedding = checkpoint.embedding()
        own = checkpoint.head()
        table = torch.from_numpy(embedding.dense())
        self.head = table if own is None else torch.from_numpy(own.dense())
        self.embedding = table * self.architecture.embedding_scale
        norm = checkpoint.final_norm()
        assert norm is not None
        self.norm = torch.from_numpy(np.array(norm, np.float32))

    def states(self, text: NDArray[np.int64]) -> Tensor:
        """[tokens, numbers] float32, rounded to bfloat16 as they are while they serve."""
        engine, found = self._engine, []
        session = engine.open_session()
        for start in range(0, len(text), _CHUNK):
            chunk = text[start : start + _CHUNK].tolist()
            states = engine.forward([SequenceTokens(session, chunk, logits=0)])[0].states
            assert states is not None
            found.append((states.astype(np.uint32) << 16).view(np.float32))
            engine.commit_kv(session, range(len(chunk)))
        engine.close_session(session)
        return torch.from_numpy(np.concatenate(found))
