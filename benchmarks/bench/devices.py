"""SLED: a device drafts with its own model, and a server far away verifies.

The device is a process that does what `card-client edge` does, and keeps its model from text to
text. Every byte takes `DEVICE_DELAY_S` longer, each way.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from bench.activity import NOTHING, DraftActivity
from bench.delaying_proxy import delaying_proxy
from bench.measurement import Measurement, Task
from bench.streamed import request_of, streamed
from bench.systems import DEVICE_DELAY_S
from bench.through_grpc import ServerError, ThroughGrpc
from card_client import CardClient, CardError
from card_client.edge import DraftModel, TransformersModel, stream

_LOAD_S = 120.0
_END_S = 10.0


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
        text, activity = written
        measured: Measurement = text.measured(self._server.last_counters(), activity)
        return measured


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
        model = CountedModel(TransformersModel.load(draft))
    except CardError as error:
        parents.send(str(error))
        return
    parents.send(None)
    with suppress(EOFError):  # the parent ended, or wants no more
        asyncio.run(_write_all(model, address, parents))


class CountedModel:
    """A model whose passes are counted."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self.end_ids = model.end_ids
        self.activity = NOTHING

    def tokens(self, text: str) -> list[int]:
        return self._model.tokens(text)

    def next_token(self, tokens: Sequence[int]) -> int:
        began = time.perf_counter_ns()
        token = self._model.next_token(tokens)
        busy_ns = self.activity.busy_ns + time.perf_counter_ns() - began
        self.activity = DraftActivity(0, busy_ns, self.activity.passes + 1)
        return token


async def _write_all(model: CountedModel, address: str, parents: Connection) -> None:
    async with delaying_proxy(address, DEVICE_DELAY_S) as proxy, CardClient(proxy) as client:
        while True:
            task, decoding, gamma = await asyncio.to_thread(parents.recv)
            request, before = request_of(task, decoding), model.activity
            try:
                deltas = stream(client, request, model, ahead=gamma, whole=True)
                parents.send((await streamed(deltas), model.activity.since(before)))
            except CardError as error:
                parents.send(str(error))
