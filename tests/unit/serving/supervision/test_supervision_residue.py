"""What a supervisor leaves in files: swept when it is dead, left alone while it lives."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from card.serving.supervision.processes import REGIONS
from card.serving.supervision.residue import RunDirectory, sweep


def abandon(run: RunDirectory) -> None:
    """Let go of the lock as a killed supervisor does: nothing is removed."""
    os.close(run._descriptor)


def region_of(run: RunDirectory) -> Path:
    region = REGIONS / f"{run.region_prefix}stub"
    region.write_bytes(b"\0" * 64)
    return region


def test_files_of_other_programs_are_not_swept(tmp_path: Path) -> None:
    owner = RunDirectory(tmp_path)
    foreign, region = tmp_path / "triton_python_backend_shm_region_1", region_of(owner)
    foreign.write_bytes(b"\0")
    abandon(RunDirectory(tmp_path))
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([foreign, owner.path])
    assert region.exists()
    owner.close()


@pytest.mark.parametrize("trap", ["a file", "a pattern", "open to all", "a link"])
def test_sweep_when_a_link_or_folder_of_another_owner_stands_there_leaves_it(
    tmp_path: Path, trap: str
) -> None:
    run = RunDirectory(tmp_path)
    region, name = region_of(run), f"card_run_{os.getuid()}_{'0' * 16}"
    if trap == "a file":
        (tmp_path / name).write_bytes(b"")
    elif trap == "a link":
        (tmp_path / name).symlink_to(run.path)
    elif trap == "a pattern":
        (tmp_path / f"card_run_{os.getuid()}_*").mkdir(mode=0o700)
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    before = sorted(tmp_path.rglob("*"))
    assert sweep(tmp_path) == []
    assert sorted(tmp_path.rglob("*")) == before
    assert region.exists()
    run.close()


def test_measurements_are_kept_in_the_users_cache_when_it_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    private = run.calibration_cache
    assert private == tmp_path / "cache/card-triton"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    private.chmod(0o770)
    assert run.calibration_cache.parent == run.path, "others may write to it"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert run.calibration_cache.parent == run.path, "a file holds no directory"
    run.close()
