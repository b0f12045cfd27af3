"""From what a client asked for to what a session decodes."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from card.cache import ANY, MAX_END_IDS, SlotRequest, digest_of
from card.constraints import Guide
from card.sampling import SamplingParameters
from card.serving.requests.admission import Admission
from card.serving.requests.derived import guide_of, output_budget, salt_of
from card.serving.requests.refusal import Refusal, invalid
from card.serving.requests.vocabulary import Vocabulary
from card.serving.requests.wire import GenerateRequest
from card.settings import Settings

NO_END_ID = -1
"""As `end_id`: the text goes on until it has `max_tokens`."""

_AS_SENT = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Tensors that are sampling parameters of the same name."""


class SlotRequests:
    """Checks what a request says together, by the settings and the target's vocabulary."""

    def __init__(self, settings: Settings, vocabulary: Vocabulary) -> None:
        """Raises `EngineError` if the target's engine is not installed."""
        self._settings = settings
        self._vocabulary = vocabulary
        self._admission = Admission(settings)

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
        # Where a guide is complete the text ends, whatever the request says of its end.
        endless = guide is not None and request.end_id == NO_END_ID
        return SamplingParameters(
            **{name: getattr(request, name) for name in _AS_SENT},
            min_tokens=budget if endless else request.min_tokens,
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
        """As much of it as the text has room for."""
        text = request.prediction
        ids = [] if text is None else self._vocabulary.predicted_tokens(text)
        return np.array(ids[:budget], np.int64)

    def _reuses_kv(self, request: GenerateRequest) -> bool:
        """Whether the text may begin behind another one, and others behind it."""
        is_alone = self._settings.cache.isolated and not request.cache_salt
        return not (request.skip_reading_prefix_cache or is_alone)

    def _end_ids(self, request: GenerateRequest, *, guided: bool) -> tuple[int, ...]:
        """What ends the text: the one id that the request names, none, or those of the model, and
        in any case its stop tokens and those of its stop words that are special tokens.

        A guided text ends with one of the model's. Raises `Refusal` for another.
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
