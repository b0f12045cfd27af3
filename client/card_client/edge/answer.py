"""One text: the server writes it on one gRPC stream, the device sends its drafts on another.

Triton ends a stream when all its requests are answered, in their order. On a stream of their own,
drafts hold up no text, whatever becomes of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from card_client.client import DEFAULT_TIMEOUT_S, CardClient
from card_client.edge.device import DEFAULT_AHEAD, Device
from card_client.edge.model import DraftModel
from card_client.errors import CardError, invalid
from card_client.wire import Delta, GenerateRequest

_END_S = 1.0
"""For the server to end the stream of the drafts."""


async def stream(
    client: CardClient,
    request: GenerateRequest,
    model: DraftModel,
    *,
    ahead: int = DEFAULT_AHEAD,
    whole: bool = False,
    timeout_s: float | None = DEFAULT_TIMEOUT_S,
    on_refusal: Callable[[CardError], None] = lambda _: None,
) -> AsyncGenerator[Delta, None]:
    """As `CardClient.stream`, with `model` drafting at most `ahead` tokens ahead on this machine.

    `whole` sends only chains of this many tokens: the rounds of SLED, for a `decoding` in which the
    server waits for them. The text is the same as without a draft. Errors of the model are raised
    behind the whole text. If the server refuses most drafts, `on_refusal` gets the reason.
    """
    if request.input_ids:
        prompt = list(request.input_ids)
    elif request.text_input is not None:
        prompt = model.tokens(request.text_input)
    else:
        raise invalid("text_input is missing")
    device = Device(model, prompt, max_tokens=request.max_tokens, ahead=ahead, whole=whole)
    key = secrets.token_hex(16)
    deltas = client.stream(replace(request, draft_key=key), timeout_s=timeout_s)
    drafting = asyncio.create_task(device.draft())
    sending = asyncio.create_task(_send(client, key, device, timeout_s, on_refusal))
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                device.commit(delta.output_ids)
                yield delta
        device.close()
        await drafting
    finally:
        device.close()
        drafting.cancel()
        # A stream that is cancelled while more may come costs Triton memory; this one is ending.
        await asyncio.wait({sending}, timeout=_END_S)
        sending.cancel()


async def _send(
    client: CardClient,
    key: str,
    device: Device,
    timeout_s: float | None,
    on_refusal: Callable[[CardError], None],
) -> None:
    """Send what the device drafts. Where that is not possible the text comes without it."""
    try:
        refusal = await client.send_drafts(key, device.drafts(), timeout_s=timeout_s)
    except CardError as error:
        refusal = error
    if refusal is not None:
        on_refusal(refusal)
