"""The images: what they are made of, whom they run as, how they start and say how they are."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pathspec
import pytest
import typer
from dockerfile import Stage, imported_packages, stages
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from card.serving import supervisor
from card.serving.supervision.health import HealthServer
from card.serving.supervision.model_files import check_model_files
from card.settings import REPOSITORY_ROOT, ServingSettings, load_settings

IMAGES = ("cpu", "gpu")
PACKAGE = REPOSITORY_ROOT / "python_backend/card"
GUARD = tuple(REPOSITORY_ROOT / name for name in ("gateway/card_guard", "client/card_client"))
"""What the supervisor starts in front of the server, and what that imports of ours."""
MODEL_FILES = REPOSITORY_ROOT / "python_backend/model_files"

FROM_THE_CONTAINER = {"tensorrt_llm", "mpi4py", "triton", "triton_python_backend_utils"}
"""Modules that Triton's container alone brings along."""
PARTS = {"pydantic_core": "pydantic"}
"""Modules that another one's distribution requires in just its own version."""


@pytest.fixture(params=IMAGES)
def image(request: pytest.FixtureRequest) -> Stage:
    return stages()[str(request.param)]


def _copied(stage: Stage) -> Iterator[str]:
    """Sources in the build context."""
    for value in stage.all("COPY"):
        words = [word for word in value.split() if not word.startswith("--")]
        if "--from=" not in value:
            yield from words[:-1]
    for value in stage.all("RUN"):
        for mount in re.findall(r"--mount=(\S+)", value):
            options = dict(option.split("=") for option in mount.split(","))
            if "from" not in options:
                yield options["source"]


def _ignored(path: Path) -> bool:
    lines = (REPOSITORY_ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    spec = pathspec.PathSpec.from_lines("gitignore", lines)
    return bool(spec.match_file(path.relative_to(REPOSITORY_ROOT).as_posix()))


def test_everything_copied_is_there_and_not_ignored() -> None:
    for stage in stages().values():
        for source in _copied(stage):
            path = REPOSITORY_ROOT / source
            assert path.exists(), source
            files = [path] if path.is_file() else [p for p in path.rglob("*.*") if p.is_file()]
            kept = [file for file in files if not _ignored(file)]
            assert kept, f"{source} is ignored"


def test_the_chat_pair_reaches_the_cpu_image_alone() -> None:
    """And no other weights that lie about where an image is built."""
    assert not _ignored(REPOSITORY_ROOT / "models/draft/model.safetensors")
    for elsewhere in ("models/target/model.gguf", "models/mine/model.safetensors", "mine.gguf"):
        assert _ignored(REPOSITORY_ROOT / elsewhere)
    bringing = {name for name, stage in stages().items() if "--from=chat-pair" in str(stage)}
    assert bringing == {"cpu"}
    copying = {name for name, stage in stages().items() if "models/draft" in _copied(stage)}
    assert copying == {"chat-pair"}


def test_the_build_makes_a_pair_that_serves_by_the_settings_of_the_image(tmp_path: Path) -> None:
    _carry_out(stages()["chat-pair"], tmp_path)
    (copied,) = (value for value in stages()["cpu"].all("COPY") if "settings.yaml" in value)
    source, inside = copied.split()[-2:]
    assert stages()["cpu"].words("CMD") == [f"--settings={inside}"]
    settings = load_settings(REPOSITORY_ROOT / source)
    paths = {
        role: tmp_path / getattr(settings, role).path.relative_to("/")
        for role in ("target", "draft")
    }
    built = {role: {"path": path} for role, path in paths.items()}
    assert check_model_files(load_settings(REPOSITORY_ROOT / source, **built)) is None


def _carry_out(stage: Stage, root: Path) -> None:
    """What a build does in this stage, with the folder `root` for the root of the file system."""
    directory = root
    for name, value in stage.instructions:
        if name == "WORKDIR":
            directory = root / value.lstrip("/")
            directory.mkdir(parents=True)
        elif name == "COPY":
            *_, source, copied_to = (word for word in value.split() if not word.startswith("--"))
            path = REPOSITORY_ROOT / source
            to = root / copied_to.lstrip("/") if copied_to[0] == "/" else directory / copied_to
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, to)
        elif name == "RUN":
            command = re.sub(r"(?<=\s)/(?=\w)", f"{root}/", value)
            binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            subprocess.run(
                command, shell=True, check=True, cwd=directory, env=os.environ | {"PATH": binaries}
            )
        else:
            assert name == "ARG", name


def test_an_image_does_not_run_as_root(image: Stage) -> None:
    user = re.fullmatch(r"(\d+):(\d+)", image.last("USER"))
    assert user
    assert int(user.group(1)) > 0
    names = [name for name, _ in image.instructions]
    assert "RUN" not in names[len(names) - names[::-1].index("USER") :]


def test_an_image_starts_the_supervisor_below_an_init(image: Stage) -> None:
    words = image.words("ENTRYPOINT")
    assert words[:2] == ["tini", "--"]
    start = words.index("python")
    assert words[start : start + 3] == ["python", "-m", supervisor.__name__]
    options = [*words[start + 3 :], *image.words("CMD")]
    app = typer.Typer()
    app.command()(supervisor.main)
    command = typer.main.get_command(app)
    values = command.make_context("supervisor", options).params
    assert values == {
        "settings": Path("/etc/card/settings.yaml"),
        "model_repository": Path("/opt/card/model_repository"),
    }
    (copied,) = [value for value in image.all("COPY") if "model_repository" in value]
    assert copied.split()[-2:] == ["model_repository", str(values["model_repository"])]


def test_the_health_check_asks_what_the_supervisor_answers(image: Stage) -> None:
    value = image.last("HEALTHCHECK")
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", value)
    assert found
    assert int(found.group(1)) == ServingSettings().health_port
    health = HealthServer("127.0.0.1", 0)
    try:
        assert health.answer(found.group(2))[0] is not HTTPStatus.NOT_FOUND
    finally:
        health.close()


ONLY_FOR_PROCESSORS = {"openvino"}
"""Engines that a GPU image does not run; `engine: auto` passes over them where they are absent."""
ONLY_ON_DEVICES = {"transformers"}
"""Of the client's extra `edge`, whose models draft elsewhere."""


def test_the_gpu_image_brings_every_package_that_the_code_imports() -> None:
    lines = (REPOSITORY_ROOT / "requirements/gpu.txt").read_text(encoding="utf-8").splitlines()
    required = {Requirement(line).name for line in lines if line and not line.startswith("#")}
    distributions = importlib.metadata.packages_distributions()
    imported = set().union(*map(imported_packages, (PACKAGE, MODEL_FILES, *GUARD)))
    ours = {package.name for package in (MODEL_FILES, *GUARD)}
    elsewhere = FROM_THE_CONTAINER | ONLY_FOR_PROCESSORS | ONLY_ON_DEVICES
    for name in imported - ours - elsewhere:
        found = {canonicalize_name(each) for each in distributions[PARTS.get(name, name)]}
        assert required & found, name
