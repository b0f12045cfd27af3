"""Which reader takes a model's files."""

from __future__ import annotations

from pathlib import Path

from model_files.huggingface import HuggingFaceFiles
from model_files.interface import ModelFiles, ModelFilesError
from model_files.json_file import is_irregular


def is_gguf(path: Path) -> bool:
    """Whether `path` names a GGUF file rather than a directory, by its ending or because it is a
    file."""
    return path.suffix == ".gguf" if not path.exists() else not path.is_dir()


def model_at(path: Path) -> Path:
    """The model that `path` names: the only GGUF file of a folder without a config.json, or the
    path itself."""
    try:
        if path.is_dir() and not (path / "config.json").exists():
            files = sorted(path.glob("*.gguf"))
            return files[0] if len(files) == 1 else path
    except OSError:  # reading it will raise the error
        pass
    return path


def model_files_of(path: Path) -> ModelFiles:
    """The files of the model at `path`. Raises `ModelFilesError`."""
    path = model_at(path)
    try:
        if not is_gguf(path):
            if (found := sorted(path.glob("*.gguf"))) and not (path / "config.json").exists():
                names = ", ".join(file.name for file in found)
                raise ModelFilesError(f"{path} holds several GGUF files; name one: {names}")
            return HuggingFaceFiles(path)
        if is_irregular(path):
            raise ModelFilesError(f"{path} is no regular file")
    except OSError as error:
        raise ModelFilesError(f"{path} cannot be read: {error}") from error
    from model_files.gguf.files import GgufFiles  # the package that reads these takes 0.3 s

    return GgufFiles.read(path)
