"""No code comes in with a checkpoint: no pickle, no remote code, nothing that executes data."""

from __future__ import annotations

import ast
import os
import pickle
import re
import shutil
from pathlib import Path

import pytest
from real_pair import DRAFT, pair_settings

from card.engines import EngineError
from card.engines.loading import load_engine
from card.settings import REPOSITORY_ROOT

SHIPPED = (
    "python_backend",
    "client",
    "gateway",
    "model_repository",
    "tools",
    "scripts",
    "benchmarks",
)
UNPICKLING = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
"""Modules that run code while they read data."""


def shipped_files() -> list[Path]:
    files = [f for folder in SHIPPED for f in (REPOSITORY_ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    return files


def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"), file)))


def imported(node: ast.AST) -> set[str]:
    """Top-level names of the modules that an import statement names."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module.partition(".")[0]}
    return set()


def called(node: ast.AST) -> str:
    """`torch.load` for a call of it; empty for anything else."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def test_nothing_that_is_shipped_unpickles_or_executes_data() -> None:
    wrong = []
    for file in shipped_files():
        for node in nodes(file):
            forbidden = imported(node) & UNPICKLING
            unsafe = called(node) in ("torch.load", "yaml.load", "eval", "exec", "__import__")
            if forbidden or unsafe:
                wrong.append(f"{file}: {ast.unparse(node)}")
    assert wrong == []


@pytest.mark.parametrize("switch", ["trust_remote_code", "allow_pickle"])
def test_a_dangerous_switch_is_never_on_and_never_a_setting(switch: str) -> None:
    """Every place that names it says False, as an argument or in a dictionary."""
    named = []
    for file in shipped_files():
        for node in nodes(file):
            if isinstance(node, ast.keyword) and node.arg == switch:
                named.append((file, ast.unparse(node.value)))
            if isinstance(node, ast.Dict):
                named += [
                    (file, ast.unparse(value))
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == switch
                ]
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == switch:
                named.append((file, "a field"))
    assert [place for place in named if place[1] != "False"] == []


def test_no_shell_is_handed_a_text_to_run() -> None:
    wrong = [
        f"{file}: {ast.unparse(node)}"
        for file in shipped_files()
        for node in nodes(file)
        if called(node) in ("os.system", "os.popen")
        or (isinstance(node, ast.keyword) and node.arg == "shell")
    ]
    assert wrong == []


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
