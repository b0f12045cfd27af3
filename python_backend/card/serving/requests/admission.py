"""How a request is decoded that was sent as it was, by what settings and the target's engine allow.

Our own engines do everything that the wire can say. TensorRT-LLM's runtime does not honour some
parameters beside candidates, and some not at all.
"""

from __future__ import annotations

from collections.abc import Callable

from card.engines.tensorrt_llm.support import installed_version, obstacles
from card.sampling import SamplingParameters
from card.serving.requests.refusal import invalid
from card.serving.requests.wire import GenerateRequest
from card.settings import Settings
from card.speculation.acceptance import RULES
from card.speculation.drafters.remote import REMOTE
from card.speculation.pacing import PACINGS, PLAIN


class Admission:
    """Raises `EngineError` if the target's engine is not installed."""

    def __init__(
        self, settings: Settings, installed: Callable[[], str] = installed_version
    ) -> None:
        """`installed` tells the version of TensorRT-LLM."""
        self._settings = settings
        self._policy = settings.target.tensorrt_llm.unproven_parameters
        self._version = None
        if settings.engine_of(settings.target) == "tensorrt_llm":
            self._version = installed()

    def drafter(self, request: GenerateRequest) -> str | None:
        """Who makes candidates: a device, or what is loaded and not forbidden; None: nobody. Raises
        `Refusal` naming what is loaded."""
        loaded = [self._settings.drafter]
        if self._version is None and self._settings.proposals not in loaded:
            loaded.append(self._settings.proposals)
        named, forbidden = request.drafter, request.forbidden_drafter
        for field, name in (("drafter", named), ("forbidden_drafter", forbidden)):
            if name not in (None, *loaded):
                are = "is" if len(loaded) == 1 else "are"
                raise invalid(field, name, f"{' or '.join(loaded)}, which {are} loaded")
        if request.draft_key is not None:
            if named is not None:
                raise invalid("drafter", named, "absent beside draft_key, for a device drafts")
            return REMOTE
        if forbidden is not None and forbidden == named:
            raise invalid("forbidden_drafter", forbidden, "another one than drafter")
        return named or next((name for name in loaded if name != forbidden), None)

    def proposes(self, request: GenerateRequest) -> bool:
        """Whether the target may add candidates by itself."""
        return request.forbidden_drafter != self._settings.proposals

    def acceptance(self, request: GenerateRequest) -> str:
        """What makes a candidate final. Raises `Refusal` naming the rules that are allowed."""
        speculation = self._settings.speculation
        wanted = request.acceptance or speculation.acceptance
        allowed = [speculation.acceptance]
        if self._version is None:
            lossless = [name for name, rule in RULES.items() if rule.lossless]
            allowed = [*lossless, *speculation.lossy_acceptance]
        if wanted not in allowed:
            raise invalid(
                "acceptance", wanted, f"one of {', '.join(allowed)} (speculation.lossy_acceptance)"
            )
        return wanted

    def decoding(
        self,
        request: GenerateRequest,
        parameters: SamplingParameters,
        wanted: str,
        drafter: str | None,
    ) -> str:
        """How the request is decoded if `wanted` is what it or the settings ask for, and `drafter`
        makes its candidates. Raises `Refusal` naming what the engine cannot do."""
        if drafter is None:
            wanted = PLAIN
        if self._version is None:
            return wanted
        if PACINGS[wanted].waits:
            allowed = " or ".join(name for name, pacing in PACINGS.items() if not pacing.waits)
            raise invalid("decoding", wanted, f"{allowed}: TensorRT-LLM's loop waits for no draft")
        for obstacle in obstacles(
            parameters,
            seeded=request.seed is not None,
            log_probabilities=request.return_log_probs,
            guided=bool(request.guided_decoding_guide_type),
            version=self._version,
            likeliest=request.top_log_probs,
            prompt_log_probabilities=request.return_prompt_log_probs,
        ):
            if obstacle.ignored or self._policy == "refuse":
                raise invalid(obstacle.field, getattr(request, obstacle.field), obstacle.allowed)
            wanted = PLAIN
        return wanted
