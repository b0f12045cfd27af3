"""`scripts/trtllm_check`: from a pair to a verdict, with the stand-in in NVIDIA's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from real_pair import DRAFT, TARGET

from card.settings import REPOSITORY_ROOT
from trtllm.installation import Installation
from trtllm.report import Check, Report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "standin"))
from installation import install, make_environment


def run(python: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [REPOSITORY_ROOT / "scripts/trtllm_check", "--target", TARGET, "--draft", DRAFT]
    return subprocess.run(
        [str(each) for each in (*command, *arguments)],
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_pair_is_served_compared_killed_and_judged(tmp_path: Path) -> None:
    results = tmp_path / "found.json"
    python = make_environment(tmp_path, "1.2.1")
    done = run(python, "--limit", 2, "--max-tokens", 256, "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(results.read_text())
    assert written["passed"]
    assert written["verdict"] == done.stdout.splitlines()[-1]
    assert "says nothing of TensorRT-LLM" in written["verdict"]
    checked = {check["name"] for check in written["checks"]}
    assert checked >= {"texts", "streams", "metrics", "killed draft", "killed target"}
    systems = {speed["system"] for speed in written["speeds"]}
    assert systems >= {"ours, card", "NVIDIA's own, plain", "NVIDIA's own, draft-target"}


def test_a_file_that_cannot_be_written_is_refused_before_anything_begins(tmp_path: Path) -> None:
    python = make_environment(tmp_path, "1.2.1")
    done = run(python, "--results", tmp_path / "nothing" / "found.json")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("trtllm_check: --results: ")


def test_a_run_that_has_not_ended_has_not_passed(tmp_path: Path) -> None:
    report = Report(Installation("1.2.1", is_standin=False), "8b", "1b")
    report.checks.append(Check("texts", True, ""))
    report.write(tmp_path / "found.json")
    written = json.loads((tmp_path / "found.json").read_text())
    assert not written["passed"]
    assert "not finished: the run" in written["verdict"]
    report.ended = True
    assert report.verdict().startswith("PASS: 1 of 1")


def test_without_tensorrt_llm_nothing_begins(tmp_path: Path) -> None:
    done = run(Path(sys.executable), "--results", tmp_path / "found.json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "PYTHON" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_python_that_lacks_a_package_is_told_where_they_are_listed(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    done = run(tmp_path / "venv/bin/python3", "--results", tmp_path / "found.json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "requirements/gpu.txt" in done.stderr


def test_a_package_that_triton_would_not_find_is_asked_for(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    packages = next((tmp_path / "venv/lib").glob("python*")) / "site-packages"
    # Everything that this environment has but for what is installed from this repository.
    others = f"{install(tmp_path / 'standin', '1.2.1')}\n{sysconfig.get_path('purelib')}\n"
    (packages / "others.pth").write_text(others, encoding="utf-8")
    done = run(tmp_path / "venv/bin/python3", "--results", tmp_path / "found.json")
    assert done.returncode == 2
    assert "pip install" in done.stderr
