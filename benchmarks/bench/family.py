"""`bench family`: systems of the literature side by side, interleaved in one run."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from bench import terminal
from bench.contest import contest
from bench.figures import Question
from bench.served import ServerError
from bench.systems import SYSTEMS, line_up_in_process, line_up_served, systems_for
from card.speculation.pacing import PLAIN

SystemName = Enum("SystemName", {name: name for name in SYSTEMS}, type=str)  # type: ignore[misc]


def family(
    prompts: terminal.PromptsFile = terminal.PROMPTS,
    limit: terminal.Limit = None,
    max_tokens: terminal.MaxTokens = 128,
    minutes: terminal.Minutes = 60.0,
    json_file: terminal.JsonFile = None,
    settings_file: terminal.SettingsFile = None,
    temperature: terminal.Temperatures = None,
    system: Annotated[
        list[SystemName] | None,
        typer.Option(
            help="A system, beside the target alone. May be repeated.", show_default="all"
        ),
    ] = None,
) -> None:
    """Measure the systems of the literature, each built from our parts, on the same weights."""
    wanted = {name.value for name in system or SystemName} | {PLAIN}
    extent = terminal.Extent(
        prompts, max_tokens, json_file, settings_file, limit, minutes, temperature
    )
    with contest("family", extent) as stage:
        possible = systems_for(stage.pair.settings)
        systems = {name: found for name, found in possible.items() if name in wanted}
        if without := sorted(wanted - systems.keys()):
            stage.skipped.append(f"{', '.join(without)}: the draft names no masks (pard_token)")
        found = line_up_in_process(stage.stack, stage.pair, systems)
        far = {name: one for name, one in systems.items() if one.on_a_device}
        try:
            found += line_up_served(stage.stack, stage.pair, settings_file, far)
        except ServerError as error:
            stage.skipped.append(f"{', '.join(far)}: {error}")
        questions = [
            Question(name, f"{name}@grpc" if one.on_a_device else name, (PLAIN,))
            for name, one in systems.items()
        ]
        stage.run(found, questions)
