"""One text: the server writes it, the device drafts for it, on one gRPC stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from card_client.client import DEFAULT_TIMEOUT_S, CardClient
from card_client.edge.device import DEFAULT_AHEAD, Device
from card_client.edge.model import DraftModel
from card_client.errors import invalid
from card_client.wire import Delta, GenerateRequest


async def stream(
    client: CardClient,
    request: GenerateRequest,
    model: DraftModel,
    *,
    ahead: int = DEFAULT_AHEAD,
    whole: bool = False,
    timeout_s: float | None = DEFAULT_TIMEOUT_S,
) -> AsyncGenerator[Delta, None]:
    """As `CardClient.stream`, with `model` drafting at most `ahead` tokens ahead on this machine.

    `whole` sends chains of so many tokens alone: the rounds of SLED, for a request whose `decoding`
    lets the server wait for them. The text is the same as without it. Raises what the model raises, behind the whole text.
    """
    if request.input_ids:
        prompt = list(request.input_ids)
    elif request.text_input is not None:
        prompt = model.tokens(request.text_input)
    else:
        raise invalid("text_input is missing")
    device = Device(model, prompt, max_tokens=request.max_tokens, ahead=ahead, whole=whole)
    keyed = replace(request, draft_key=secrets.token_hex(16))
    deltas = client.stream(keyed, timeout_s=timeout_s, drafts=device.drafts())
    drafting = asyncio.create_task(device.draft())
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                if delta.output_ids:
                    device.commit(delta.output_ids)
                if delta.finish_reason:
                    device.close()
                yield delta
        await drafting
    finally:
        device.close()
        drafting.cancel()
