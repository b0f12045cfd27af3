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
from trtllm.report import Check, Installation, Report

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


def test_pair_is_judged_when_it_was_served_compared_and_killed(tmp_path: Path) -> None:
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


def test_one_line_says_why_when_nothing_can_begin(tmp_path: Path) -> None:
    """No TensorRT-LLM, no package of the tool, no file to write, a package Triton cannot find."""
    standin = make_environment(tmp_path / "standin", "1.2.1")
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    venv.create(tmp_path / "apart", with_pip=False, symlinks=True)
    packages = next((tmp_path / "apart/lib").glob("python*")) / "site-packages"
    # Everything that this environment has but for what is installed from this repository.
    others = f"{install(tmp_path / 'package', '1.2.1')}\n{sysconfig.get_path('purelib')}\n"
    (packages / "others.pth").write_text(others, encoding="utf-8")
    results = tmp_path / "found.json"
    for python, file, said in (
        (Path(sys.executable), results, "PYTHON"),
        (tmp_path / "bare/bin/python3", results, "requirements/gpu.txt"),
        (standin, tmp_path / "nothing/found.json", "--results: "),
        (tmp_path / "apart/bin/python3", results, "pip install"),
    ):
        done = run(python, "--results", file)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.count("\n") == 1
        assert said in done.stderr
    assert not results.exists()


def test_run_has_not_passed_when_it_has_not_ended() -> None:
    report = Report(Installation("1.2.1", is_standin=False), "8b", "1b")
    report.checks.append(Check("texts", True, ""))
    assert not report.passed
    assert "not finished: the run" in report.verdict()
    report.ended = True
    assert report.verdict().startswith("PASS: 1 of 1")
