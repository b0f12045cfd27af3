"""Turns a client's request into a session's request.

Our own engines support every parameter of the wire. An engine of another project does not support
some parameters together with candidates, and others not at all. Such a request is decoded without
candidates or refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from card.cache import ANY, MAX_END_IDS, NO_SALT, SALT_BYTES, SlotRequest, digest_of
from card.constraints import GUIDE_TYPES, Guide
from card.engines.guest.admission import Asked, GuestRules
from card.engines.tensorrt_llm.requests import TensorRTRules
from card.engines.vllm.rules import VllmRules
from card.sampling import SamplingParameters
from card.serving.requests.refusal import Refusal, invalid, missing
from card.serving.requests.vocabulary import Vocabulary
from card.serving.requests.wire import GenerateRequest
from card.settings import LimitSettings, Settings
from card.speculation.acceptance import RULES
from card.speculation.drafters.remote import REMOTE
from card.speculation.pacing import PACINGS, PLAIN


def output_budget(request: GenerateRequest, prompt_tokens: int, limits: LimitSettings) -> int:
    """Most tokens that the request may generate after a prompt of `prompt_tokens`.

    Raises `Refusal` when the prompt is too long or leaves less room than `max_tokens`.
    """
    field_name = "input_ids" if request.input_ids else "text_input"
    if not 1 <= prompt_tokens <= limits.prompt_tokens:
        raise Refusal(
            "INVALID_ARGUMENT",
            f"{field_name} is {prompt_tokens} tokens long; it must be 1 to {limits.prompt_tokens} "
            "(limits.prompt_tokens)",
        )
    room = limits.context_tokens - prompt_tokens
    if request.max_tokens is None:
        return min(limits.default_max_tokens, room)
    if request.max_tokens > room:
        raise invalid(
            "max_tokens",
            request.max_tokens,
            f"at most {room} after a prompt of {prompt_tokens} tokens "
            f"(limits.context_tokens is {limits.context_tokens})",
        )
    return request.max_tokens


def salt_of(request: GenerateRequest) -> bytes:
    """The salt of texts that may share KV with this one, [SALT_BYTES]; `NO_SALT` also where no KV
    is kept."""
    if request.skip_reading_prefix_cache or not request.cache_salt:
        return NO_SALT
    return hashlib.blake2b(request.cache_salt.encode(), digest_size=SALT_BYTES).digest()


def guide_of(request: GenerateRequest) -> Guide | None:
    """The guide of the text; None: there is none.

    Raises `Refusal` when type and guide do not fit together.
    """
    kind, text = request.guided_decoding_guide_type, request.guided_decoding_guide
    if not kind:
        if text:
            raise missing("guided_decoding_guide_type", f"one of {', '.join(GUIDE_TYPES)}")
        return None
    if kind == "json":
        if text:
            raise invalid(
                "guided_decoding_guide",
                text,
                "absent, since json is any JSON; send a schema as json_schema",
            )
    elif not text:
        raise missing("guided_decoding_guide", f"what {kind} stands for")
    return Guide(kind, text)


def guest_rules(settings: Settings) -> GuestRules | None:
    """The rules of another project's engine that runs the target; None: one of ours runs it."""
    if settings.guest == "tensorrt_llm":
        policy = settings.target.tensorrt_llm.unproven_parameters
        return TensorRTRules(refuses=policy == "refuse")
    if settings.guest == "vllm":
        return VllmRules(speculates=settings.speculation.rows != 1)
    return None


class Admission:
    """The drafter, rule and pacing that a request gets, or its refusal."""

    def __init__(self, settings: Settings) -> None:
        speculation = settings.speculation
        self._guest = guest_rules(settings)
        self._proposals = settings.proposals
        self._loaded = [settings.drafter]
        if (self._guest is None or self._guest.ngrams) and self._proposals not in self._loaded:
            self._loaded.append(self._proposals)
        self._acceptance, self._rules = speculation.acceptance, [speculation.acceptance]
        if self._guest is None:
            lossless = [name for name, rule in RULES.items() if rule.lossless]
            self._rules = [*lossless, *speculation.lossy_acceptance]

    def drafter(self, request: GenerateRequest) -> str | None:
        """The drafter of the request: `remote` for a device, or a loaded drafter that the request
        does not forbid; None: there is none. Raises `Refusal` naming the loaded drafters."""
        loaded, named, forbidden = self._loaded, request.drafter, request.forbidden_drafter
        for field, name in (("drafter", named), ("forbidden_drafter", forbidden)):
            if name not in (None, *loaded):
                are = "is" if len(loaded) == 1 else "are"
                raise invalid(field, name, f"{' or '.join(loaded)}, which {are} loaded")
        if request.draft_key is not None:
            if named is not None:
                raise invalid("drafter", named, "absent beside draft_key, because a device drafts")
            return REMOTE
        if forbidden is not None and forbidden == named:
            raise invalid("forbidden_drafter", forbidden, "another one than drafter")
        return named or next((name for name in loaded if name != forbidden), None)

    def proposes(self, request: GenerateRequest) -> bool:
        """Whether the target may add n-gram candidates."""
        return request.forbidden_drafter != self._proposals

    def acceptance(self, request: GenerateRequest) -> str:
        """The acceptance rule of the request. Raises `Refusal` naming the allowed rules."""
        wanted = request.acceptance or self._acceptance
        if wanted not in self._rules:
            allowed = f"one of {', '.join(self._rules)} (speculation.lossy_acceptance)"
            raise invalid("acceptance", wanted, allowed)
        return wanted

    def decoding(
        self,
        request: GenerateRequest,
        parameters: SamplingParameters,
        wanted: str,
        drafter: str | None,
    ) -> str:
        """The pacing of the request, given the `wanted` pacing of request or settings and the
        `drafter` of its candidates. Raises `Refusal` naming what the engine cannot do."""
        if drafter is None:
            wanted = PLAIN
        if (guest := self._guest) is None:
            return wanted
        if PACINGS[wanted].waits:
            allowed = " or ".join(name for name, pacing in PACINGS.items() if not pacing.waits)
            raise invalid("decoding", wanted, f"{allowed}: {guest.title}'s loop waits for no draft")
        asked = Asked(
            parameters,
            seeded=request.seed is not None,
            log_probabilities=request.return_log_probs,
            likeliest=request.top_log_probs,
            prompt_log_probabilities=request.return_prompt_log_probs,
            guided=bool(request.guided_decoding_guide_type),
        )
        for obstacle in guest.obstacles(asked):
            if obstacle.ignored or guest.refuses:
                raise invalid(obstacle.field, getattr(request, obstacle.field), obstacle.allowed)
            wanted = PLAIN
        return wanted


NO_END_ID = -1
"""Value of `end_id` for a text that continues up to `max_tokens`."""

_AS_SENT = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Tensors with the name of a sampling parameter."""


class SlotRequests:
    """Checks the fields of a request together, with the settings and the target's vocabulary."""

    def __init__(self, settings: Settings, vocabulary: Vocabulary) -> None:
        self._settings = settings
        self._vocabulary = vocabulary
        self._admission = Admission(settings)
        self._beside = ThreadPoolExecutor(1, "predictions")

    async def checked(self, request: GenerateRequest) -> SlotRequest:
        """As `of`; a prediction, which may take 100 ms to tokenize, holds up no other request.
        Raises `Refusal`."""
        if request.prediction is None:
            return self.of(request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._beside, self.of, request)

    def of(self, request: GenerateRequest) -> SlotRequest:
        """Raises `Refusal`."""
        if request.return_trace and not request.stream:
            raise invalid("return_trace", True, "false unless stream is true")
        speculation, admission = self._settings.speculation, self._admission
        budget = output_budget(request, len(request.input_ids), self._settings.limits)
        guide = guide_of(request)
        parameters = self._parameters(request, budget, guide)
        drafter = admission.drafter(request)
        wanted = request.decoding or speculation.decoding
        return SlotRequest(
            prompt=np.array(request.input_ids, np.int64),
            max_tokens=budget,
            pacing=admission.decoding(request, parameters, wanted, drafter),
            drafter=drafter or ANY,
            growth=request.growth or ANY,
            acceptance=admission.acceptance(request),
            num_draft_tokens=speculation.num_draft_tokens,
            log_probabilities=request.return_log_probs,
            likeliest=_likeliest(request),
            prompt_log_probabilities=request.return_prompt_log_probs,
            parameters=parameters,
            guide=guide,
            draft_key_digest=digest_of(request.draft_key) if request.draft_key else None,
            proposes=admission.proposes(request),
            reuses_kv=self._reuses_kv(request),
            salt=salt_of(request),
            trace=request.return_trace,
            prediction=self._prediction(request, budget),
        )

    def _parameters(
        self, request: GenerateRequest, budget: int, guide: Guide | None
    ) -> SamplingParameters:
        # A text ends where its guide is complete, whatever end ids the request names.
        endless = guide is not None and request.end_id == NO_END_ID
        least = max(request.min_tokens, request.min_length)
        return SamplingParameters(
            **{name: getattr(request, name) for name in _AS_SENT},
            min_tokens=budget if endless else least,
            seed=secrets.randbits(64) if request.seed is None else request.seed,
            logit_bias=_logit_bias(request),
            bad_words=self._bad_words(request),
            end_ids=self._end_ids(request, guided=guide is not None),
        )

    def _bad_words(self, request: GenerateRequest) -> tuple[tuple[int, ...], ...]:
        words = self._vocabulary.bad_word_tokens(request.bad_words)
        most = self._settings.limits.bad_word_tokens
        if (length := sum(map(len, words))) > most:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"bad_words are {length} tokens long; they must be at most {most} "
                "(limits.bad_word_tokens)",
            )
        return words

    def _prediction(self, request: GenerateRequest, budget: int) -> NDArray[np.int64]:
        """The beginning of the prediction that the text has room for."""
        text = request.prediction
        ids = [] if text is None else self._vocabulary.predicted_tokens(text)
        return np.array(ids[:budget], np.int64)

    def _reuses_kv(self, request: GenerateRequest) -> bool:
        """Whether the text may reuse kept KV, and its KV be kept."""
        is_alone = self._settings.cache.isolated and not request.cache_salt
        return not (request.skip_reading_prefix_cache or is_alone)

    def _end_ids(self, request: GenerateRequest, *, guided: bool) -> tuple[int, ...]:
        """The ids that end the text: the id that the request names, none, or the model's ids; and
        always its stop tokens, and its stop words that are special tokens.

        A guided text ends with an id of the model. Raises `Refusal` for another.
        """
        ends, wanted = self._vocabulary.end_ids, request.end_id
        if guided and wanted not in (None, NO_END_ID, *ends):
            known = ", ".join(map(str, ends))
            raise invalid(
                "end_id", wanted, f"absent, -1 or the model's ({known}) where a text is guided"
            )
        if not guided and wanted is not None:
            ends = () if wanted == NO_END_ID else (wanted,)
        stops = self._vocabulary.special_ids(request.stop_words)
        ends = tuple(dict.fromkeys((*ends, *request.stop_token_ids, *stops)))
        if len(ends) > MAX_END_IDS:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"stop_token_ids and stop_words make {len(ends)} tokens that end the text, the "
                f"model's own included; they must be at most {MAX_END_IDS}",
                field="stop_token_ids",
            )
        return ends


def _logit_bias(request: GenerateRequest) -> tuple[tuple[int, float], ...]:
    ids, values = request.logit_bias_ids, request.logit_bias_values
    if len(ids) != len(values):
        raise Refusal(
            "INVALID_ARGUMENT",
            f"logit_bias_values has {len(values)} elements and logit_bias_ids {len(ids)}; send "
            "one value for each id",
            field="logit_bias_values",
        )
    return tuple(zip(ids, values, strict=True))


def _likeliest(request: GenerateRequest) -> int:
    wanted = request.top_log_probs
    if wanted and not (request.return_log_probs or request.return_prompt_log_probs):
        raise invalid(
            "top_log_probs",
            wanted,
            "0 unless return_log_probs or return_prompt_log_probs is true",
        )
    return wanted
