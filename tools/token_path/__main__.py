"""Start a traced server with the bundled pair, send one request, print the modules it passed."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from card.settings import REPOSITORY_ROOT, load_settings
from loading.service import Service, starting_service
from loading.supervised import SUPERVISOR

_PACKAGES = ("python_backend", "client", "gateway")
_IDLE_S = 1.5
_LOOK_S = 0.05
_FIRST_REQUESTS = 3
"""Before the traced one: what only a first pass of a size does is not a token's way."""
_PROMPT = "The largest ocean is the"


def main(
    functions: Annotated[bool, typer.Option(help="Also print the functions that ran.")] = False,
) -> None:
    """Print the modules between a client and its tokens, on the default path."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        repository = _traced_repository(folder)
        command = (*SUPERVISOR, f"--model-repository={repository}")
        with starting_service(load_settings(), None, folder / "log", command=command) as service:
            while not service.server.is_settled():
                time.sleep(_LOOK_S)
            for _ in range(_FIRST_REQUESTS):
                _ask(service)
            with _phase(folder, "idle"):
                time.sleep(_IDLE_S)
            with _phase(folder, "request"):
                _ask(service)
            _print(_passed(folder), functions=functions)


def _traced_repository(folder: Path) -> Path:
    """A copy of the model repository in which every Python model starts a tracer first."""
    repository = folder / "model_repository"
    shutil.copytree(REPOSITORY_ROOT / "model_repository", repository)
    packages = [str(REPOSITORY_ROOT / package) for package in _PACKAGES]
    for model in repository.glob("*/1/model.py"):
        process = model.parents[1].name
        start = (
            "import sys\n"
            f"sys.path.append({str(REPOSITORY_ROOT / 'tools')!r})\n"
            "from pathlib import Path\n"
            "from token_path.tracer import Tracer\n"
            f"Tracer(Path({str(folder)!r}), {process!r}, {packages!r})\n"
        )
        model.write_text(start + model.read_text())
    return repository


@contextmanager
def _phase(folder: Path, name: str) -> Iterator[None]:
    """Record calls meanwhile; ends when every process has written its record."""
    before = {file: _changed(file) for file in folder.glob("*.json")}
    (folder / name).touch()
    time.sleep(4 * _LOOK_S)  # until every tracer has seen the file
    yield
    (folder / name).unlink()
    models = [model.parents[1].name for model in folder.glob("model_repository/*/1/model.py")]
    files = [folder / f"{model}.json" for model in models]
    while not all(
        file.exists() and file.stat().st_mtime_ns > before.get(file, 0) for file in files
    ):
        time.sleep(_LOOK_S)


def _changed(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def _ask(service: Service) -> None:
    body = {"text_input": _PROMPT, "max_tokens": 48, "stream": True}
    request = urllib.request.Request(
        f"{service.http}/v2/models/ensemble/generate_stream", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request) as answer:
        answer.read()


def _passed(folder: Path) -> dict[str, dict[str, list[str]]]:
    """For each process the modules that did something for the request, with these functions:
    those that also run while the server is idle do not count."""
    found: dict[str, dict[str, list[str]]] = {}
    for file in sorted(folder.glob("*.json")):
        told = json.loads(file.read_text())
        idle = {tuple(call) for call in told["idle"]}
        for path, function in told["request"]:
            if (path, function) not in idle:
                module = str(Path(path).relative_to(REPOSITORY_ROOT))
                found.setdefault(file.stem, {}).setdefault(module, []).append(function)
    return found


def _print(passed: dict[str, dict[str, list[str]]], *, functions: bool) -> None:
    for process, modules in passed.items():
        typer.echo(f"\n{process}")
        for module, names in sorted(modules.items()):
            typer.echo(f"  {module}")
            if functions:
                typer.echo(f"      {', '.join(sorted(names))}")
    every = {module for modules in passed.values() for module in modules}
    typer.echo(f"\n{len(every)} modules")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="scripts/token_path")
