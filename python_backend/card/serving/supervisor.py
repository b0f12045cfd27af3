"""The entry point everywhere: a supervisor, if this machine and the settings allow to start one.

    python -m card.serving.supervisor --settings FILE

Exit codes: 0 stopped on SIGTERM or SIGINT; 1 the server does not start; 2 this machine or the
settings do not allow to start it, or the models' files cannot be served, said in one line each.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from card.cache.pool import pool_bytes
from card.serving.geometry import pool_geometry
from card.serving.log import open_log
from card.serving.prerequisites import (
    FEW_FILES,
    check_architecture,
    check_ascii,
    check_ports,
    check_shared_memory,
    check_shell_proof,
    raise_limit,
)
from card.serving.supervision.guard import check_guard
from card.serving.supervision.processes import REGIONS
from card.serving.supervision.recovery import LOG
from card.serving.supervision.residue import run_directory
from card.serving.supervision.startup import StartError
from card.serving.supervision.states import STUBS
from card.serving.supervision.supervisor import StopRequests, Supervisor, UnservableError
from card.serving.triton_server import MINIMUM_REGION_BYTES, TritonNotFoundError
from card.settings import REPOSITORY_ROOT, LimitSettings, Settings, SettingsError, load_settings

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def unmet_prerequisites(settings: Settings) -> list[str]:
    """What keeps this machine from serving `settings`, in one line each."""
    serving, directory = settings.serving, settings.cache.directory
    ports = {f"serving.{name}": port for name, port in serving.ports.items()}
    needed_bytes = {REGIONS: len(STUBS) * MINIMUM_REGION_BYTES}  # one line for the same folder
    fields = {directory: "cache.directory"} if directory != REGIONS else {}
    needed_bytes[directory] = pool_bytes(pool_geometry(settings)) + needed_bytes.get(directory, 0)
    checks = (
        check_architecture(),
        check_ascii(REPOSITORY_ROOT) or check_ascii(Path(sys.prefix)),
        check_ports(ports, serving.address),
        check_shell_proof(directory, "cache.directory"),
        check_guard(serving, run_directory(directory)) if serving.guard else None,
        *(
            check_shared_memory(folder, needed, fields.get(folder))
            for folder, needed in needed_bytes.items()
        ),
    )
    return [problem for problem in checks if problem is not None]


def main(
    settings: Annotated[
        Path | None, typer.Option(help="Settings file (default: $CARD_SETTINGS, else defaults).")
    ] = None,
    model_repository: Annotated[
        Path, typer.Option(help="Folder of the Triton models.")
    ] = REPOSITORY_ROOT / "model_repository",
) -> None:
    """Serve CARD on Triton until SIGTERM or SIGINT; a second signal cuts open streams off."""
    stop_requests = StopRequests()

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    def stop(number: int, frame: FrameType | None) -> None:
        stop_requests.ask()

    for number in _STOPPING:
        signal.signal(number, leave)  # while there is nothing yet that must be removed
    try:
        values = load_settings(settings)
        open_log("supervisor", values.observability.log_format)
        if (files := raise_limit()) < FEW_FILES:
            LOG.warn(
                "few_descriptors",
                limit=files,
                reason="that many silent connections keep all clients out; raise 'ulimit -Hn'",
            )
        if values.limits.context_tokens < LimitSettings().context_tokens:
            LOG.note(
                "short_context",
                context_tokens=values.limits.context_tokens,
                reason="the settings say so, or the models were built for no more",
            )
        if unmet := unmet_prerequisites(values):
            _refuse(unmet)
        for number in _STOPPING:
            signal.signal(number, stop)
        Supervisor(values, model_repository, stop_requests).run()
    except (SettingsError, TritonNotFoundError, UnservableError, OSError) as error:
        _refuse([str(error)])
    except StartError as error:
        typer.echo(f"error: {error}", err=True)
        LOG.warn("gave_up", reason=error.for_the_log)
        raise typer.Exit(1) from error


def _refuse(reasons: list[str]) -> NoReturn:
    """Say in one line each why nothing is started, and end."""
    for reason in reasons:
        typer.echo(f"error: {reason}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m card.serving.supervisor")
