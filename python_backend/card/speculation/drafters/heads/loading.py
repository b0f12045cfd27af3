"""Reads a head's tensors. What a checkpoint leaves out, its embedding, is the target's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from card.engines import EngineError
from card.engines.architecture import Architecture
from card.engines.checkpoints import DenseMatrix, Matrix, open_checkpoint
from card.engines.options import EngineOptions
from card.speculation.drafters.heads import formats
from card.speculation.drafters.heads.block_engine import BlockEngine
from card.speculation.drafters.heads.blocks import HeadShape
from card.speculation.drafters.heads.ctc import Ctc
from card.speculation.drafters.heads.dspark import DSpark
from card.speculation.drafters.heads.eagle3 import Eagle3
from card.speculation.drafters.heads.engine import HeadEngine
from card.speculation.drafters.heads.formats import PARD2
from card.speculation.drafters.heads.pard2 import Pard2
from card.speculation.drafters.heads.passes import CompiledPasses
from card.speculation.drafters.heads.reading import PROJECTION, WEIGHTS, read_head
from card.speculation.drafters.heads.specformer import SpecFormer

HEADS: dict[str, tuple[Any, Any]] = {
    formats.EAGLE3: (Eagle3, HeadEngine),
    formats.PEAGLE: (Eagle3, HeadEngine),
    formats.PARD2: (Pard2, HeadEngine),
    formats.DFLASH: (DSpark, BlockEngine),
    formats.DSPARK: (DSpark, BlockEngine),
    formats.SPECFORMER: (SpecFormer, BlockEngine),
    formats.CTC: (Ctc, BlockEngine),
}
"""By kind, the module and the engine that runs it."""
_IDLE = ("t2d", "d2t", "embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight")


def load_head(
    directory: Path, target: Path, options: EngineOptions, *, compiled: bool = False
) -> HeadEngine | BlockEngine:
    """Load a head for this target. Raises `EngineError` naming what does not fit.

    compiled  OpenVINO computes the head, and not PyTorch
    """
    config, a, of_target = read_head(directory, target)
    tensors = _tensors(directory / WEIGHTS)
    if config.kind == PARD2:
        tensors |= _tensors(directory / PROJECTION)
    ranked = _ranked(tensors, a.vocabulary, directory)
    own = tensors.get("embed_tokens.weight")
    if "lm_head.weight" not in tensors and (rows := _output(own, a, target, of_target)) is not None:
        tensors["lm_head.weight"] = rows
    taps = len(config.taps(of_target.layers))
    biases = (
        "layers.0.self_attn.q_proj.bias" in tensors,
        "layers.0.self_attn.o_proj.bias" in tensors,
    )
    module, engine = HEADS[config.kind]
    head = module(config, a, HeadShape(taps, taps * of_target.hidden, len(ranked), biases))
    _fill(head, tensors, directory)
    embedding: Matrix
    if own is not None:
        embedding, scale = DenseMatrix(own.float().numpy()), a.embedding_scale
    else:
        embedding, scale = open_checkpoint(target, of_target).embedding(), of_target.embedding_scale
    if config.embedding_scale is not None:
        scale = config.embedding_scale
    if embedding.shape[1] != a.hidden:
        raise EngineError(
            f"{directory}: the head's states have {a.hidden} numbers, the embedding of the target "
            f"{target} has {embedding.shape[1]}, and the head brings none of its own"
        )
    passes = CompiledPasses(head.eval(), options.threads) if compiled else None
    loaded: HeadEngine | BlockEngine = engine(head, embedding, scale, ranked, options, passes)
    return loaded


def _output(
    own: Tensor | None, a: Architecture, target: Path, of_target: Architecture
) -> Tensor | None:
    """The output matrix [vocabulary, hidden] of a head that brings none: its own embedding, where
    the two are one, or the target's; None: the target's does not fit."""
    if own is not None and a.tied_embeddings:
        return own
    if a.hidden != of_target.hidden:
        return None
    checkpoint = open_checkpoint(target, of_target)
    return torch.from_numpy((checkpoint.head() or checkpoint.embedding()).dense())


def _tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by `speculators`' names."""
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{file} cannot be read: {error}") from error
    own = {each.removeprefix("model."): it for each, it in found.items()}
    return {each.replace("midlayer.", "layers.0.", 1): it for each, it in own.items()}


def _ranked(tensors: dict[str, Tensor], vocabulary: int, directory: Path) -> NDArray[np.int64]:
    """[ids] ascending, the target's ids that the head ranks: id i stands for i + d2t[i]."""
    offsets = tensors.get("d2t")
    if offsets is None:
        return np.arange(vocabulary)
    ids: NDArray[np.int64] = np.arange(len(offsets)) + offsets.numpy().astype(np.int64)
    ascends = len(ids) and ids[0] >= 0 and (np.diff(ids) > 0).all() and ids[-1] < vocabulary
    if not ascends:
        raise EngineError(f"{directory / WEIGHTS}: d2t names ids that do not ascend")
    return ids


def _fill(head: nn.Module, tensors: dict[str, Tensor], directory: Path) -> None:
    """Copy the tensors into the head. Raises `EngineError` for missing, other and unsound ones."""
    given = {name: it.float() for name, it in tensors.items() if name not in _IDLE}
    expected = head.state_dict()
    problems = [f"{name} is missing" for name in expected.keys() - given.keys()]
    problems += [f"{name} is unknown" for name in given.keys() - expected.keys()]
    problems += [
        f"{name} has the shape {[*given[name].shape]}; expected {[*it.shape]}"
        for name, it in expected.items()
        if name in given and given[name].shape != it.shape
    ]
    problems += [f"{name} is not finite" for name, it in given.items() if not it.isfinite().all()]
    if problems:
        raise EngineError(f"{directory / WEIGHTS}: {'; '.join(sorted(problems)[:4])}")
    with torch.no_grad():
        head.load_state_dict(given)
