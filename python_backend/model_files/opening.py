"""Which reader takes a model's files."""

from __future__ import annotations

import os
from pathlib import Path

from model_files.gguf.part_names import parts_of
from model_files.huggingface import HuggingFaceFiles
from model_files.interface import ModelFiles, ModelFilesError
from model_files.json_file import is_irregular


def is_gguf(path: Path) -> bool:
    """Whether `path` names a GGUF file rather than a directory, by its ending or because it is a
    file."""
    return path.suffix == ".gguf" if not path.exists() else not path.is_dir()


def model_at(path: Path) -> Path:
    """The model that `path` names: a directory, a GGUF file, or the first part of a model in parts.
    The path may also name another part, or a folder without a config.json and with the GGUF files
    of one model."""
    try:
        if not path.is_dir():
            return parts_of(path)[0]
        if not (path / "config.json").exists():
            models = _models_in(path)
            return models[0] if len(models) == 1 else path
    except OSError:  # reading it will raise the error
        pass
    return path


def real_path(path: Path) -> Path:
    """The path without links. A part keeps its name, by which the others are found: the file that
    it links to may have another."""
    if len(parts_of(path)) > 1:
        return Path(os.path.realpath(path.parent)) / path.name
    return Path(os.path.realpath(path))  # `Path.resolve` raises where links lead in circles


def _models_in(folder: Path) -> list[Path]:
    """The GGUF files of a folder; of models in parts the first one."""
    return sorted({parts_of(file)[0] for file in folder.glob("*.gguf")})


def model_files_of(path: Path) -> ModelFiles:
    """The files of the model at `path`. Raises `ModelFilesError`."""
    path = model_at(path)
    try:
        if not is_gguf(path):
            if (found := _models_in(path)) and not (path / "config.json").exists():
                names = ", ".join(file.name for file in found)
                raise ModelFilesError(f"{path} holds several GGUF files; name one: {names}")
            return HuggingFaceFiles(path)
        if is_irregular(path):
            raise ModelFilesError(f"{path} is no regular file")
    except OSError as error:
        raise ModelFilesError(f"{path} cannot be read: {error}") from error
    from model_files.gguf.files import GgufFiles  # the package that reads these takes 0.3 s

    return GgufFiles.read(path)
