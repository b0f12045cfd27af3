"""No code comes in with a checkpoint, and its matrices stay what they are."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from real_pair import DRAFT, pair_settings
from safetensors.torch import load_file, save_file

from card.engines import EngineError
from card.engines.architecture import read_architecture
from card.engines.checkpoints import open_checkpoint
from card.loading import load_engine
from card.settings import REPOSITORY_ROOT
from model_files import ModelFilesError, model_files_of

SHIPPED = (
    "python_backend",
    "client",
    "gateway",
    "model_repository",
    "tools",
    "scripts",
    "benchmarks",
)


def shipped_files() -> list[Path]:
    files = [f for folder in SHIPPED for f in (REPOSITORY_ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    return files


def test_a_dangerous_switch_is_never_on_and_never_a_setting() -> None:
    """Every place that names it says False, as an argument or in a dictionary."""
    switches = {"trust_remote_code", "allow_pickle"}
    named = []
    for file in shipped_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), file)):
            if isinstance(node, ast.keyword) and node.arg in switches:
                named.append((file, ast.unparse(node.value)))
            if isinstance(node, ast.Dict):
                named += [
                    (file, ast.unparse(value))
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant) and key.value in switches
                ]
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in switches:
                named.append((file, "a field"))
    assert [place for place in named if place[1] != "False"] == []


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, crater: Path) -> None:
        self._crater = crater

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self._crater),))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "model.pt"])
def test_a_pickled_checkpoint_is_refused_and_never_opened(tmp_path: Path, name: str) -> None:
    crater, model = tmp_path / "crater", tmp_path / "model"
    shutil.copytree(DRAFT, model, ignore=shutil.ignore_patterns("*.safetensors"))
    (model / name).write_bytes(pickle.dumps(Bomb(crater)))
    with pytest.raises(EngineError, match="safetensors"):
        load_engine(pair_settings(draft={"path": str(model)}), "draft")
    assert not crater.exists()


def test_code_beside_a_checkpoint_is_never_looked_for() -> None:
    """`auto_map` in config.json names the files that `trust_remote_code` would run."""
    engines = [file for file in shipped_files() if "engines" in file.parts]
    assert engines
    assert not [file for file in engines if re.search(r"auto_map|modeling_", file.read_text())]


STORED = {torch.bfloat16: np.uint16, torch.float16: np.float16, torch.float32: np.float32}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_models.save(tmp_path, "llama3")
    return tmp_path


def rewrite(directory: Path, dtype: torch.dtype, **changed: float) -> dict[str, torch.Tensor]:
    file = directory / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    for name, value in changed.items():
        tensors[f"model.layers.0.self_attn.{name}.weight"][1, 2] = value
    save_file(tensors, file, {"format": "pt"})
    return tensors


@pytest.mark.parametrize("dtype", list(STORED))
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_refused_by_name(
    directory: Path, dtype: torch.dtype, value: float
) -> None:
    rewrite(directory, dtype, k_proj=value)
    with pytest.raises(EngineError, match=r"k_proj\.weight holds values that are not finite"):
        next(iter(open_checkpoint(directory, read_architecture(directory)).layers()))


def test_a_configuration_of_more_layers_than_tensors_is_refused_at_once(directory: Path) -> None:
    file = directory / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(config | {"num_hidden_layers": 10**9}), encoding="utf-8")
    with pytest.raises(EngineError, match="num_hidden_layers is 1000000000; allowed: at most"):
        open_checkpoint(directory, read_architecture(directory))


def test_a_header_longer_than_the_bound_is_not_read(directory: Path) -> None:
    """The file is sparse: it takes no room."""
    with (directory / "model.safetensors").open("wb") as written:
        written.write((90 << 20).to_bytes(8, "little") + b"{")
        written.truncate(1 << 30)
    with pytest.raises(EngineError, match="its header has 94371840 bytes; allowed: at most"):
        open_checkpoint(directory, read_architecture(directory))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_file_beside_the_weights_that_is_too_long_is_not_read(directory: Path, name: str) -> None:
    """The file is sparse: it takes no room."""
    with (directory / name).open("wb") as written:
        written.truncate(1 << 30)
    files = model_files_of(directory)
    read = {
        "config.json": files.config,
        "tokenizer.json": files.tokenizer,
        "chat_template.jinja": files.chat_template,
    }
    with pytest.raises(ModelFilesError, match=f"{name} has 1073741824 bytes; allowed: at most"):
        read[name]()
