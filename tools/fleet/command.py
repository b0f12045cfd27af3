"""`scripts/fleet`: several replicas and a router on this machine, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from card.serving.prerequisites import check_ports
from card.settings import REPOSITORY_ROOT
from demonstration.gateway import curl_line
from environments import EnvironmentFailedError
from fleet.running import LOOK_S, PORTS, Fleet, fleet_of, running
from loading.supervised import ProcessEndedError
from refusal import refuse

LOGS = REPOSITORY_ROOT / "build" / "fleet"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class _Interrupted(Exception):
    """Ctrl-C, SIGTERM or a closed terminal."""


@app.command()
def fleet(
    replicas: Annotated[int, typer.Argument(help="How many replicas.", min=1, max=16)] = 2,
    port: Annotated[int, typer.Option(help="Port of the router.", min=1, max=65535)] = 9000,
    first_port: Annotated[
        int,
        typer.Option(help="First port of the replicas, which take five each.", min=1, max=65000),
    ] = 9100,
    policy: Annotated[
        str, typer.Option(help="How the router chooses: cache_aware, round_robin, ...")
    ] = "cache_aware",
    settings: Annotated[
        Path | None, typer.Option(help="Another settings file (YAML).", show_default="built in")
    ] = None,
) -> None:
    """Serve with several replicas and a router in front of them, all on this machine."""
    taken = range(first_port, first_port + len(PORTS) * replicas + 1)
    if problem := check_ports(
        {"--port": port} | {f"port {one}": one for one in taken}, "127.0.0.1"
    ):
        refuse(problem)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        made = fleet_of(replicas, port, taken, LOGS, policy, settings)
        print("starting the replicas and the router (Ctrl-C stops them)", file=sys.stderr)
        with running(made):
            _say(made)
            while True:
                for place in made.restored():
                    print(f"replica {place} was lost and starts again", file=sys.stderr)
                time.sleep(LOOK_S)
    except _Interrupted:
        raise typer.Exit(0) from None
    except (EnvironmentFailedError, ProcessEndedError) as error:
        refuse(f"{error}; see {LOGS}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    # A second signal must not break off the stop; the kernel ends it in the end.
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise _Interrupted


def _say(made: Fleet) -> None:
    for place, replica in enumerate(made.replicas):
        print(f"replica {place}  {replica.url}  pid {replica.process.pid} (kill -TERM drains it)")
    print(f"router     {made.router.url}/v1  policy {made.router.policy}")
    print(f"replicas   {made.router.url}/workers")
    print(f"logs       {LOGS}")
    print(curl_line(made.router.url), flush=True)
