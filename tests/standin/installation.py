"""Make the stand-in importable as an installed package."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "package" / "tensorrt_llm"


VERSION = "1.2.1"


def install(folder: Path) -> Path:
    """A folder for `sys.path` that holds the package and its metadata."""
    metadata = folder / f"tensorrt_llm-{VERSION}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {VERSION}\n"
        "Summary: A stand-in for tests\n",
        encoding="utf-8",
    )
    (folder / "tensorrt_llm").symlink_to(PACKAGE, target_is_directory=True)
    return folder


def make_environment(folder: Path) -> Path:
    """A virtual environment with all that this one has, and the stand-in; returns its Python.

    Triton's stub takes its packages from the first `python3` on PATH and ignores PYTHONPATH.
    """
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    packages = next((folder / "venv/lib").glob("python*")) / "site-packages"
    standin = install(folder / "standin")
    (packages / "standin.pth").write_text(
        f"{standin}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n",
        encoding="utf-8",
    )
    return folder / "venv/bin/python3"
