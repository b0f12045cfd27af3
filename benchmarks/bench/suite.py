"""`bench suite`: our systems and what a user would run instead, interleaved in one run."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from bench import terminal
from bench.contest import contest, line_up_in_process, line_up_served
from bench.figures import Question
from bench.peers import PEERS, PeerError, line_up_peer
from bench.systems import SYSTEMS
from bench.vllm_peer import ALONE, line_up_vllm
from bench.vllm_peer import SYSTEMS as VLLM_SYSTEMS
from card.speculation.pacing import PACINGS, PLAIN

PeerName = Enum("PeerName", {name: name for name in (*PEERS, ALONE)}, type=str)  # type: ignore[misc]

_WITHOUT_GROWTH = [name for name, pacing in PACINGS.items() if pacing.growth is None]
_OURS = {name: SYSTEMS[name] for name in (PLAIN, *_WITHOUT_GROWTH)}
_LLAMA_CPP, _OPENVINO = (tuple(mode.system for mode in peer.modes) for peer in PEERS.values())

QUESTIONS = (
    Question("autoregressive / llama.cpp plain", PLAIN, _LLAMA_CPP[:1]),
    Question("autoregressive / OpenVINO GenAI plain", PLAIN, _OPENVINO[:1]),
    Question("CARD / autoregressive", "card", (PLAIN,)),
    Question("auto / autoregressive", "auto", (PLAIN,)),
    Question("CARD / draft-then-verify", "card", ("draft_then_verify",)),
    Question("CARD / PEARL", "card", ("pearl",)),
    Question("CARD / llama.cpp's best", "card", _LLAMA_CPP),
    Question("CARD / OpenVINO GenAI's best", "card", _OPENVINO),
    Question("auto / llama.cpp's best", "auto", _LLAMA_CPP),
    Question("auto / OpenVINO GenAI's best", "auto", _OPENVINO),
    Question("auto / vLLM's best", "auto", VLLM_SYSTEMS),
    Question("auto through gRPC / in process", "auto@grpc", ("auto",)),
    Question("auto / autoregressive, both through gRPC", "auto@grpc", (f"{PLAIN}@grpc",)),
)


def suite(
    prompts: terminal.PromptsFile = terminal.PROMPTS,
    limit: terminal.Limit = None,
    max_tokens: terminal.MaxTokens = 128,
    minutes: terminal.Minutes = 60.0,
    json_file: terminal.JsonFile = None,
    settings_file: terminal.SettingsFile = None,
    temperature: terminal.Temperatures = None,
    peer: Annotated[
        list[PeerName] | None,
        typer.Option(help="A peer. May be repeated.", show_default=", ".join((*PEERS, ALONE))),
    ] = None,
    peers: Annotated[bool, typer.Option(help="Measure peers too.")] = True,
    grpc: Annotated[bool, typer.Option(help="Measure through a real server too.")] = True,
) -> None:
    """Measure our systems and their peers, interleaved in one run on the same weights."""
    names = [name.value for name in peer] if peer else [*PEERS, ALONE]
    extent = terminal.Extent(
        prompts, max_tokens, json_file, settings_file, limit, minutes, temperature
    )
    with contest("suite", extent) as stage:
        found = line_up_in_process(stage.stack, stage.pair, _OURS)
        served = {name: SYSTEMS[name] for name in (PLAIN, "auto")} if grpc else {}
        found += line_up_served(stage.stack, stage.pair, settings_file, served)
        for name in names if peers else ():
            if name == ALONE:
                found += line_up_vllm(
                    stage.stack, stage.pair.settings, stage.tokenizer, stage.skipped
                )
                continue
            try:
                there = line_up_peer(PEERS[name], stage.pair, stage.tokenizer)
                found += stage.stack.enter_context(there)
            except PeerError as error:
                stage.skipped.append(str(error))
        stage.run(found, QUESTIONS)
