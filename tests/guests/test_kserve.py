"""KServe's resources are what the classes of its own package read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from card.settings import REPOSITORY_ROOT

FILES = REPOSITORY_ROOT / "deploy" / "kubernetes" / "kserve"


def unknown_fields(*files: Path) -> dict[str, list[str]]:
    python = REPOSITORY_ROOT / ".venv-kserve/bin/python"
    command = [python, Path(__file__).with_name("kserve_classes.py"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = map(json.loads, done.stdout.splitlines())
    return {f"{one['kind']} {one['name']}": one["unknown"] for one in told}


def test_kserve_knows_every_field() -> None:
    assert unknown_fields(*sorted(FILES.glob("*.yaml"))) == {
        "ClusterServingRuntime card-grpc": [],
        "ClusterServingRuntime card-openai": [],
        "InferenceService card-grpc": [],
        "InferenceService card-openai": [],
    }


def test_an_unknown_field_is_found(tmp_path: Path) -> None:
    text = (FILES / "runtime.yaml").read_text(encoding="utf-8")
    wrong = tmp_path / "runtime.yaml"
    wrong.write_text(text.replace("protocolVersions", "protocols"), encoding="utf-8")
    found = unknown_fields(wrong)
    assert found["ClusterServingRuntime card-grpc"] == [".spec.protocols"]
