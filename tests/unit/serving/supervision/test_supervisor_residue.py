"""What a dead supervisor leaves behind is found and removed; what lives is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_stub import fake_stub

from card.serving.supervision import residue
from card.serving.supervision.policy import ProcessState
from card.serving.supervision.residue import RunDirectory, remove_region, sweep


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the shared-memory mount, of the pools and of the stubs' regions alike."""
    monkeypatch.setattr(residue, "REGIONS", tmp_path)
    return tmp_path


def abandon(run: RunDirectory) -> None:
    """Let go of the lock as a killed supervisor does: nothing is removed."""
    os.close(run._descriptor)


def region_of(run: RunDirectory, mount: Path, name: str = "stub") -> Path:
    region = mount / f"{run.region_prefix}{name}"
    region.write_bytes(b"\0" * 64)
    return region


def test_a_closed_run_directory_leaves_nothing(mount: Path) -> None:
    run = RunDirectory(mount)
    region_of(run, mount)
    assert run.temporary.is_dir()
    run.close()
    assert list(mount.iterdir()) == []


def test_what_a_dead_supervisor_left_is_swept(mount: Path) -> None:
    run = RunDirectory(mount)
    region_of(run, mount)
    abandon(run)
    assert sweep(mount) == [run.path]
    assert list(mount.iterdir()) == []


def test_what_a_living_supervisor_owns_is_not_swept(mount: Path) -> None:
    run = RunDirectory(mount)
    region = region_of(run, mount)
    assert sweep(mount) == []
    assert region.exists()
    assert run.path.exists()
    run.close()


def test_files_of_other_programs_are_not_swept(mount: Path) -> None:
    foreign = mount / "triton_python_backend_shm_region_1"
    foreign.write_bytes(b"\0")
    abandon(RunDirectory(mount))
    sweep(mount)
    assert list(mount.iterdir()) == [foreign]


@pytest.mark.parametrize("trap", ["a file", "a pattern", "open to all", "a link"])
def test_a_trap_that_somebody_else_set_is_left_alone(mount: Path, trap: str) -> None:
    run = RunDirectory(mount)
    region, name = region_of(run, mount), f"card_run_{os.getuid()}_{'0' * 16}"
    if trap == "a file":
        (mount / name).write_bytes(b"")
    elif trap == "a link":
        (mount / name).symlink_to(run.path)
    elif trap == "a pattern":
        (mount / f"card_run_{os.getuid()}_*").mkdir(mode=0o700)
    else:
        (mount / name).mkdir()
        (mount / name).chmod(0o777)
    before = sorted(mount.rglob("*"))
    assert sweep(mount) == []
    assert sorted(mount.rglob("*")) == before
    assert region.exists()
    run.close()


def test_orphaned_stubs_of_a_dead_supervisor_are_killed(
    mount: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = RunDirectory(mount)
    region = region_of(run, mount)
    with fake_stub(tmp_path_factory.mktemp("models"), "draft", region.name) as orphan:
        abandon(run)
        sweep(mount)
        assert orphan.state is ProcessState.GONE


def test_a_pool_that_nobody_locks_is_swept(mount: Path) -> None:
    home = mount / f"card-{os.getuid()}-1"
    home.mkdir(mode=0o700)
    (home / "pool-0").write_bytes(b"\0")
    assert sweep(mount) == [home]


def test_removing_one_region_spares_the_others(mount: Path) -> None:
    run = RunDirectory(mount)
    dead, living = region_of(run, mount, "dead"), region_of(run, mount, "living")
    remove_region(dead.name)
    remove_region(dead.name)
    assert not dead.exists()
    assert living.exists()
    run.close()


def test_models_are_staged_with_what_is_added_to_their_configuration(
    mount: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = tmp_path_factory.mktemp("repository")
    for model in ("card", "ensemble"):
        (repository / model / "1").mkdir(parents=True)
        (repository / model / "config.pbtxt").write_text(f"name: '{model}'\n")
    run = RunDirectory(mount)
    for added in ("one", "two"):  # once per start of the server
        staged = run.stage_models(repository, {"ensemble": added, "card": ""})
        assert (staged / "ensemble/config.pbtxt").read_text() == f"name: 'ensemble'\n\n{added}"
    assert (staged / "ensemble/1").is_dir()
    assert (staged / "card").resolve() == repository / "card"
    assert (repository / "ensemble/config.pbtxt").read_text() == "name: 'ensemble'\n"
    run.close()
    assert (repository / "card/config.pbtxt").exists()
