"""The requests of a draft under TensorRT-LLM.

The runtime's event loop makes, reads and aborts requests. Their tokens wait until the draft's loop
takes them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from card.engines.guest.drafts import Chain
from card.engines.tensorrt_llm.requests import draft_arguments
from card.engines.tensorrt_llm.runtime import Runtime, SessionTasks

log = logging.getLogger(__name__)


class TensorRTChains:
    """As of `Chains`."""

    def __init__(self, runtime: Runtime, stall_timeout_s: float) -> None:
        self._runtime = runtime
        self._tasks = SessionTasks(runtime, stall_timeout_s)

    def begin(self, asked: Sequence[tuple[Chain, list[int], int]], alternatives: int) -> None:
        def make() -> None:
            for chain, text, tokens in asked:
                arguments = draft_arguments(tokens, alternatives)
                chain.request = self._runtime.generate(text, arguments)
                self._tasks.start(self._follow(chain))

        self._runtime.call(make)

    def end(self, chains: Sequence[Chain]) -> None:
        self._runtime.call(lambda: [chain.request.abort() for chain in chains])

    def advance(self) -> None:
        """They go on by themselves."""
        self._tasks.check()

    async def _follow(self, chain: Chain) -> None:
        """Queue the tokens of a request until it ends."""
        read = 0
        try:
            async for _ in chain.request:
                self._tasks.progress()
                completion = chain.request.outputs[0]
                tokens = completion.token_ids[read:]
                told = (completion.logprobs or [])[read : read + len(tokens)]
                told = [*told, *[{}] * (len(tokens) - len(told))]
                for token, entries in zip(tokens, told, strict=True):
                    found = {other: entry.logprob for other, entry in entries.items()}
                    chain.arrived.append((token, found))
                read += len(tokens)
        except self._runtime.package.llmapi.RequestError as error:
            log.error("a request of the draft failed: %s", error)
        chain.ended = True
