"""Texts that an engine reads and writes by itself, without the loops that serve."""

from __future__ import annotations

from collections.abc import Sequence

from card.engines import Engine, SequenceTokens
from card.sampling import History, SamplingParameters, sample

_CHUNK = 64


def read(engine: Engine, session: int, tokens: Sequence[int]) -> None:
    """Read tokens into a session, without their logits."""
    for start in range(0, len(tokens), _CHUNK):
        chunk = [*tokens[start : start + _CHUNK]]
        engine.forward([SequenceTokens(session, chunk, logits=0)])
        engine.commit_kv(session, range(len(chunk)))


def write_alone(
    engine: Engine, prompt: Sequence[int], parameters: SamplingParameters, count: int
) -> list[int]:
    """`count` tokens behind `prompt`; no token ends the text."""
    (text,) = write_together(engine, [prompt], [parameters], len(prompt) + count)
    return text[len(prompt) :]


def write_together(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    parameters: Sequence[SamplingParameters],
    length: int,
) -> list[list[int]]:
    """Go on with each prompt until prompt and text have `length` tokens; the texts share
    passes."""
    histories = [History([*prompt], length) for prompt in prompts]
    sessions = [engine.open_session() for _ in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        read(engine, session, prompt[:-1])
    while going := [at for at, text in enumerate(histories) if len(text.tokens) < length]:
        batch = [SequenceTokens(sessions[at], histories[at].tokens[-1:]) for at in going]
        for at, logits in zip(going, engine.forward(batch), strict=True):
            histories[at].append(sample(logits.row(0), histories[at], parameters[at]))
            engine.commit_kv(sessions[at], [0])
    for session in sessions:
        engine.close_session(session)
    return [history.tokens for history in histories]
