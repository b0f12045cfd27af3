"""SLED: a device drafts with its own model, and a server far away verifies.

The device is a process that does what `card-client edge` does, and keeps its model from text to
text. Every byte takes `DELAY_S` longer, each way.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.activity import DraftActivity
from bench.delaying_proxy import delaying_proxy
from bench.measurement import Measurement, Task
from bench.through_grpc import ServerError, ThroughGrpc
from card_client import CardClient, CardError, GenerateRequest
from card_client.edge import TransformersModel, stream

DELAY_S = 0.02
_LOAD_S = 120.0
_END_S = 10.0


@dataclass(frozen=True)
class _Written:
    """What the device saw of its text."""

    text: str
    generated: int
    seconds: float
    first_token_s: float


class Device:
    """Writes one text at a time."""

    def __init__(self, connection: Connection, server: ThroughGrpc) -> None:
        self._connection = connection
        self._server = server

    def complete(self, task: Task, decoding: str, gamma: int) -> Measurement:
        """Raises `ServerError` if the device or the server is gone."""
        try:
            self._connection.send((task, decoding, gamma))
            written = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ServerError("the device that drafts has ended; see above") from error
        if isinstance(written, str):
            raise ServerError(written)
        counters = self._server.last_counters()
        return Measurement(
            text=written.text,
            tokens=None,
            generated=written.generated,
            seconds=written.seconds,
            first_token_s=written.first_token_s,
            steps=counters.steps,
            drafted=counters.drafted,
            accepted=counters.accepted,
            queries=counters.queries,
            hits=counters.hits,
            draft=DraftActivity(0, 0, 0),
        )


@contextmanager
def device(draft: Path, server: ThroughGrpc) -> Iterator[Device]:
    """A device with this model. Raises `ServerError` if it cannot load it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_draft, args=(draft, server.address, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_LOAD_S):
            raise ServerError(f"the device did not load its draft within {_LOAD_S:.0f} s")
        if (said := ours.recv()) is not None:
            raise ServerError(said)
        yield Device(ours, server)
    except EOFError:
        raise ServerError("the device ended while it loaded its draft; see above") from None
    finally:
        ours.close()  # which ends it, if it listens
        process.join(_END_S)
        process.kill()
        process.join()


def _draft(draft: Path, address: str, parents: Connection) -> None:
    # A Ctrl-C is for the parent, which ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from transformers.utils.logging import disable_progress_bar  # seconds to import

    disable_progress_bar()
    try:
        model = TransformersModel.load(draft)
    except CardError as error:
        parents.send(str(error))
        return
    parents.send(None)
    with suppress(EOFError):  # the parent ended, or wants no more
        asyncio.run(_write_all(model, address, parents))


async def _write_all(model: TransformersModel, address: str, parents: Connection) -> None:
    async with delaying_proxy(address, DELAY_S) as proxy, CardClient(proxy) as client:
        while True:
            task, decoding, gamma = await asyncio.to_thread(parents.recv)
            try:
                parents.send(await _write(model, client, task, decoding, gamma))
            except CardError as error:
                parents.send(str(error))


async def _write(
    model: TransformersModel, client: CardClient, task: Task, decoding: str, gamma: int
) -> _Written:
    request = GenerateRequest(
        task.prompt.text,
        task.max_tokens,
        temperature=task.temperature,
        seed=task.seed,
        end_id=-1,
        decoding=decoding,
        skip_reading_prefix_cache=True,
        return_num_output_tokens=True,
    )
    pieces: list[str] = []
    generated, first_token_s, seconds = 0, 0.0, 0.0
    started = time.perf_counter()
    async with aclosing(stream(client, request, model, ahead=gamma, whole=True)) as deltas:
        async for delta in deltas:
            seconds = time.perf_counter() - started
            first_token_s = first_token_s or seconds
            pieces.append(delta.text)
            generated = delta.num_output_tokens or 0
    return _Written("".join(pieces), generated, seconds, first_token_s)
