"""The images have what the code imports, run as a user, and start and probe what exists."""

from __future__ import annotations

import importlib.metadata
import re
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
from card.settings import REPOSITORY_ROOT, ServingSettings

MODEL_FILES = REPOSITORY_ROOT / "python_backend/model_files"
SERVED = (
    *(REPOSITORY_ROOT / "python_backend/card", REPOSITORY_ROOT / "python_backend/chat_templates"),
    MODEL_FILES,
    *(REPOSITORY_ROOT / "gateway/card_guard", REPOSITORY_ROOT / "client/card_client"),
)
"""The packages of ours in a server's image."""
ELSEWHERE = {
    "tensorrt_llm",
    "packaging",
    "mpi4py",
    "vllm",
    "triton",
    "triton_python_backend_utils",
} | {
    "openvino",  # an engine for processors
    "transformers",  # of the client's extra `edge`
}
"""Modules that Triton's container brings, or that a GPU image does not use."""
PARTS = {"pydantic_core": "pydantic"}
"""Modules that another one's distribution requires in just its own version."""


@pytest.fixture(params=["cpu", "gpu", "gpu-vllm"])
def image(request: pytest.FixtureRequest) -> Stage:
    return stages()[str(request.param)]


def _ignored(path: Path) -> bool:
    lines = (REPOSITORY_ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    spec = pathspec.PathSpec.from_lines("gitignore", lines)
    return bool(spec.match_file(path.relative_to(REPOSITORY_ROOT).as_posix()))


def test_only_the_cpu_image_has_weights_and_they_are_the_chat_pair() -> None:
    assert not _ignored(REPOSITORY_ROOT / "models/draft/model.safetensors")
    for other in ("models/target/model.gguf", "models/mine/model.safetensors", "mine.gguf"):
        assert _ignored(REPOSITORY_ROOT / other)
    assert {name for name, stage in stages().items() if "--from=chat-pair" in str(stage)} == {"cpu"}


def test_image_does_not_run_as_root(image: Stage) -> None:
    user = re.fullmatch(r"(\d+):(\d+)", image.last("USER"))
    assert user
    assert int(user.group(1)) > 0
    names = [name for name, _ in image.instructions]
    assert "RUN" not in names[len(names) - names[::-1].index("USER") :]


def test_image_starts_the_supervisor_below_an_init(image: Stage) -> None:
    words = image.words("ENTRYPOINT")
    assert words[:2] == ["tini", "--"]
    start = words.index("python")
    assert words[start : start + 3] == ["python", "-m", supervisor.__name__]
    app = typer.Typer()
    app.command()(supervisor.main)
    options = [*words[start + 3 :], *image.words("CMD")]
    values = typer.main.get_command(app).make_context("supervisor", options).params
    assert values["settings"] == Path("/etc/card/settings.yaml")
    (copied,) = [value for value in image.all("COPY") if "model_repository" in value]
    assert copied.split()[-2:] == ["model_repository", str(values["model_repository"])]


def test_health_check_asks_what_the_supervisor_answers(image: Stage) -> None:
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", image.last("HEALTHCHECK"))
    assert found
    assert int(found.group(1)) == ServingSettings().health_port
    health = HealthServer("127.0.0.1", 0)
    try:
        assert health.answer(found.group(2))[0] is not HTTPStatus.NOT_FOUND
    finally:
        health.close()


DISTRIBUTIONS = importlib.metadata.packages_distributions()


def _names_of(module: str) -> set[str]:
    """The distributions that have the module."""
    found = DISTRIBUTIONS[PARTS.get(module, module)]
    return {str(canonicalize_name(name)) for name in found}


def test_gpu_image_has_every_package_that_the_server_imports() -> None:
    lines = (REPOSITORY_ROOT / "requirements/gpu.txt").read_text(encoding="utf-8").splitlines()
    required = {Requirement(line).name for line in lines if line and not line.startswith("#")}
    imported = set().union(*map(imported_packages, SERVED))
    for module in imported - {package.name for package in SERVED} - ELSEWHERE:
        assert required & _names_of(module), module


def test_gateway_requires_every_package_that_it_imports() -> None:
    required = {"card-gateway"} | {
        canonicalize_name(Requirement(line).name)
        for name in ("card-gateway", "card-client", "fastapi")
        for line in importlib.metadata.requires(name) or ()
    }
    for module in imported_packages(REPOSITORY_ROOT / "gateway/card_gateway"):
        assert required & _names_of(module), module
