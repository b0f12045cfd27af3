"""SLED: a device drafts with its own model, and a server far away verifies.

The device does what `card-client edge` does, and keeps its model from text to text. Every byte
takes `DEVICE_DELAY_S` more, each way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.delaying_proxy import delaying_proxy
from bench.engines import let_torch_use
from bench.measurement import Measurement, Task
from bench.runner import ContenderError
from bench.served import Server, ServerError, request_of, streamed
from bench.systems import DEVICE_DELAY_S
from card.cores import usable_cores
from card_client import CardClient, CardError
from card_client.edge import TransformersModel, stream

Device = Callable[[Task, str, int], Measurement]
"""Writes one text by a pacing and so many draft tokens. Raises `ContenderError` if the server is
gone."""


@contextmanager
def device(draft: Path, server: Server) -> Iterator[Device]:
    """A device with this model, which keeps its connection. Raises `ServerError` if the model
    cannot be loaded."""
    from transformers.utils.logging import disable_progress_bar  # seconds to import

    disable_progress_bar()
    try:
        model = TransformersModel.load(draft)
    except CardError as error:
        raise ServerError(str(error)) from error
    run, stack = server.loop.run_until_complete, AsyncExitStack()

    def complete(task: Task, decoding: str, gamma: int) -> Measurement:
        let_torch_use(usable_cores())
        deltas = stream(client, request_of(task, decoding), model, ahead=gamma, whole=True)
        try:
            return replace(run(streamed(deltas)), counts=server.last_counts())
        except CardError as error:
            raise ContenderError(f"the device: {error}") from error

    try:
        proxy = run(stack.enter_async_context(delaying_proxy(server.address, DEVICE_DELAY_S)))
        client = run(stack.enter_async_context(CardClient(proxy)))
        yield complete
    finally:
        run(stack.aclose())
