"""The requests of a draft under vLLM: one step of vLLM for one pass of the drafter."""

from __future__ import annotations

from collections.abc import Sequence

from vllm import SamplingParams
from vllm.inputs import tokens_input

from card.engines.guest.drafts import Chain
from card.settings import Settings
from card.vllm.engine import loaded_engine


class VllmChains:
    """As of `Chains`. Raises `EngineError` if vLLM refuses an argument or the model."""

    def __init__(self, settings: Settings, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        draft = settings.draft
        self._engine = loaded_engine(
            "draft",
            draft,
            context=settings.limits.context_tokens,
            texts=settings.cache.slots * (1 + draft.vllm.side_branches),
            likeliest=settings.speculation.width,
        )
        self._inputs = self._engine.input_processor
        self._tasks = self._engine.get_supported_tasks()
        self._core = self._engine.engine_core.engine_core
        self._chains: dict[str, Chain] = {}
        self._made = 0

    def begin(self, asked: Sequence[tuple[Chain, list[int], int]], alternatives: int) -> None:
        for chain, text, tokens in asked:
            self._made += 1
            made = self._inputs.process_inputs(
                str(self._made),
                tokens_input(text, cache_salt=chain.salt),
                SamplingParams(
                    temperature=0.0,
                    max_tokens=tokens,
                    ignore_eos=True,
                    detokenize=False,
                    logprobs=alternatives,
                ),
                supported_tasks=self._tasks,
            )
            self._inputs.assign_request_id(made)
            self._core.add_request(*self._core.preprocess_add_request(made))
            chain.request = made.request_id
            self._chains[made.request_id] = chain

    def end(self, chains: Sequence[Chain]) -> None:
        for chain in chains:
            self._chains.pop(chain.request, None)
        self._core.abort_requests([chain.request for chain in chains])

    def advance(self) -> None:
        if not self._chains:
            return
        outputs, _ = self._core.step()
        for output in outputs[0].outputs if outputs else ():
            chain = self._chains.get(output.request_id)
            if chain is None:
                continue
            ids, values = output.new_logprobs[:2]
            for token, row, told in zip(
                output.new_token_ids, ids.tolist(), values.tolist(), strict=True
            ):
                chain.arrived.append((token, dict(zip(row, told, strict=True))))
            if output.finish_reason is not None:
                chain.ended = True
                del self._chains[output.request_id]
