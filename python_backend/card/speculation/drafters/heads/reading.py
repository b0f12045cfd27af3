"""What a head's files say, before any of its tensors is read."""

from __future__ import annotations

from pathlib import Path

from card.engines import EngineError
from card.engines.architecture import Architecture, architecture_of, read_architecture
from card.speculation.drafters.heads.formats import PARD2, HeadConfig, head_of
from model_files import ModelFilesError, model_files_of

WEIGHTS = "model.safetensors"
PROJECTION = "warp_model.safetensors"
"""PARD-2's projection."""
_PICKLES = {WEIGHTS: "pytorch_model.bin", PROJECTION: "warp_model.bin"}


def read_head(directory: Path, target: Path) -> tuple[HeadConfig, Architecture, Architecture]:
    """A head's configuration, the architecture of its layers, and that of its target. Raises
    `EngineError` for what is missing or does not fit."""
    files = model_files_of(directory)
    try:
        config = head_of(files.config())
    except ModelFilesError as error:
        raise EngineError(str(error)) from error
    except ValueError as error:
        raise EngineError(f"{files.config_file}: {error}") from error
    if config is None:
        raise EngineError(f"{files.config_file} describes no head that reads a target's states")
    own, of_target = architecture_of(config.decoder, files.config_file), read_architecture(target)
    if own.vocabulary != of_target.vocabulary:
        raise EngineError(
            f"{directory}: the head was made for a vocabulary of {own.vocabulary} ids; the target "
            f"{target} has {of_target.vocabulary}"
        )
    for name in (WEIGHTS, PROJECTION) if config.kind == PARD2 else (WEIGHTS,):
        _check_there(directory, name)
    return config, own, of_target


def _check_there(directory: Path, name: str) -> None:
    """Refuse a missing file, and one that is only there as a pickle."""
    if (directory / name).exists():
        return
    pickle = _PICKLES[name]
    if not (directory / pickle).exists():
        raise EngineError(f"{directory / name} does not exist")
    raise EngineError(
        f"{directory} holds a pickle ({pickle}), which is not read; convert it there: "
        'python -c "import torch, safetensors.torch as s; '
        f"s.save_file(torch.load('{pickle}', weights_only=True), '{name}')\""
    )
