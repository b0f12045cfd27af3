"""KServe's resources are what the classes of its own package read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from card.settings import REPOSITORY_ROOT
from environments import installed

FILES = REPOSITORY_ROOT / "deploy" / "kubernetes" / "kserve"
REQUIREMENTS = REPOSITORY_ROOT / "requirements" / "kserve.txt"


@pytest.fixture(scope="module")
def python() -> Path:
    if sys.version_info < (3, 11):
        pytest.skip("the pinned kserve needs CPython 3.11")
    return installed(REPOSITORY_ROOT / ".venv-kserve", [REQUIREMENTS])


def unknown_fields(python: Path, *files: Path) -> dict[str, list[str]]:
    command = [python, Path(__file__).with_name("kserve_classes.py"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = map(json.loads, done.stdout.splitlines())
    return {f"{one['kind']} {one['name']}": one["unknown"] for one in told}


def test_kserve_knows_every_field(python: Path) -> None:
    assert unknown_fields(python, *sorted(FILES.glob("*.yaml"))) == {
        "ClusterServingRuntime card-grpc": [],
        "ClusterServingRuntime card-openai": [],
        "InferenceService card-grpc": [],
        "InferenceService card-openai": [],
    }


def test_an_unknown_field_is_found(python: Path, tmp_path: Path) -> None:
    text = (FILES / "runtime.yaml").read_text(encoding="utf-8")
    wrong = tmp_path / "runtime.yaml"
    wrong.write_text(text.replace("protocolVersions", "protocols"), encoding="utf-8")
    found = unknown_fields(python, wrong)
    assert found["ClusterServingRuntime card-grpc"] == [".spec.protocols"]
