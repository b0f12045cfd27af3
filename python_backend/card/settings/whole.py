"""All sections together, and what must hold between them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from card.settings.limits import CacheSettings, LimitSettings
from card.settings.models import (
    DraftSettings,
    EngineName,
    ModelSettings,
    SmallDraftSettings,
    TargetSettings,
)
from card.settings.observability import ObservabilitySettings
from card.settings.renamed import with_present_names
from card.settings.serving import ServingSettings
from card.settings.speculation import SpeculationSettings
from card.speculation.control import CHOOSES_ROWS
from card.speculation.drafters import DRAFTERS
from card.speculation.pacing import PACINGS
from card.speculation.sources import WITHOUT_DRAFT

Role = Literal["draft", "target"]
"""What a model does in the pair."""

ENVIRONMENT_PREFIX = "CARD_"


def section_of(variable: str) -> str | None:
    """The section that an environment variable is meant for, known or not; None: it is not ours."""
    name = variable.upper()
    if not name.startswith(ENVIRONMENT_PREFIX):
        return None
    return name.removeprefix(ENVIRONMENT_PREFIX).partition("__")[0].lower()


class Settings(BaseSettings):
    """Everything that can be set. Frozen: a running process never changes its mind."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
    )

    engine: EngineName = "auto"
    """What runs both models, unless one names its own."""
    target: TargetSettings = TargetSettings()
    draft: DraftSettings = DraftSettings()
    """``null``: none, as with `speculation.drafter: ngram`."""
    draft_small: SmallDraftSettings = SmallDraftSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    cache: CacheSettings = CacheSettings()
    limits: LimitSettings = Field(default_factory=lambda: LimitSettings.model_validate({}))
    serving: ServingSettings = ServingSettings()
    observability: ObservabilitySettings = ObservabilitySettings()

    @model_validator(mode="before")
    @classmethod
    def _by_present_names(cls, given: Any) -> Any:
        return with_present_names(given) if isinstance(given, dict) else given

    @model_validator(mode="before")
    @classmethod
    def _without_draft(cls, given: Any) -> Any:
        """`draft: null` is another way to say that n-grams alone make candidates."""
        if not isinstance(given, dict) or "draft" not in given or given["draft"] is not None:
            return given
        rest = {name: value for name, value in given.items() if name != "draft"}
        speculation = rest.get("speculation") or {}
        if not isinstance(speculation, dict):
            return rest  # which is refused by its own name
        named = speculation.get("drafter", "auto")
        if named not in ("auto", *WITHOUT_DRAFT):
            raise ValueError(
                f"draft is null, and speculation.drafter {named} runs in the draft's process; "
                f"allowed without one: auto, {', '.join(WITHOUT_DRAFT)}"
            )
        alone = WITHOUT_DRAFT[0] if named == "auto" else named
        return rest | {"speculation": {**speculation, "drafter": alone}}

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        limits = self.limits
        if limits.prompt_tokens >= limits.context_tokens:
            raise ValueError(
                f"limits.prompt_tokens ({limits.prompt_tokens}) must be below "
                f"limits.context_tokens ({limits.context_tokens}), or no token can follow a prompt"
            )
        if limits.default_max_tokens > limits.max_tokens:
            raise ValueError(
                f"limits.default_max_tokens ({limits.default_max_tokens}) must be at most "
                f"limits.max_tokens ({limits.max_tokens})"
            )
        self._check_drafter()  # which decides what models there are
        for role, model in self._models:
            if model.device != "cpu" and self.engine_of(model) == "openvino":
                raise ValueError(
                    f"{role}.device is {model.device} and its engine is openvino, which runs on "
                    "cpu; set the engine to auto or torch"
                )
            self._check_dtype(role, model)
        if self.engine_of(self.target) == "tensorrt_llm":
            self._check_tensorrt_target()
            if self.engine_of(self.draft) == "tensorrt_llm":
                self._check_shared_devices()
        return self

    @property
    def decoding(self) -> str:
        """Registry key of the pacing of requests that name none."""
        return self.speculation.decoding

    @property
    def drafter(self) -> str:
        """Registry key of what makes candidates."""
        named = self.speculation.drafter
        return next(name for name in self._drafters if named in ("auto", name))

    @property
    def proposals(self) -> str:
        """What the target adds to a query by itself."""
        return self.drafter if self.drafter in WITHOUT_DRAFT else self.speculation.proposals

    @property
    def roles(self) -> tuple[Role, ...]:
        """The models that are loaded: what needs no draft has none."""
        return ("target",) if self.drafter in WITHOUT_DRAFT else ("draft", "target")

    @property
    def has_small_draft(self) -> bool:
        """Whether the draft's process loads `draft_small` too."""
        return self.drafter in DRAFTERS and DRAFTERS[self.drafter].model == "engines"

    @property
    def _models(self) -> list[tuple[str, ModelSettings]]:
        """By their names, those that a drafter may run on and the target."""
        found: list[tuple[str, ModelSettings]] = [("target", self.target), ("draft", self.draft)]
        return [*found, ("draft_small", self.draft_small)] if self.has_small_draft else found

    @property
    def draft_is_apart(self) -> bool:
        """Whether the draft takes no cores, and no device, from the target."""
        places = [self._place(model) for model in (self.target, self.draft)]
        return not places[0] & places[1]

    def _place(self, model: TargetSettings | DraftSettings) -> set[str]:
        """The devices of a model."""
        if self.engine_of(model) == "tensorrt_llm":
            return {f"cuda:{device}" for device in model.tensorrt_llm.devices}
        return {"cuda:0" if model.device == "cuda" else model.device}

    @property
    def control(self) -> str:
        """Registry key of what decides what pays."""
        named = self.speculation.control
        if named != "auto":
            return named
        return CHOOSES_ROWS[self.speculation.rows == "auto"]

    @property
    def _drafters(self) -> list[str]:
        """Those that run on the draft's engine, or on none, and those that need no draft."""
        on_tensorrt = self.engine_of(self.draft) == "tensorrt_llm"
        fits = ("tensorrt_llm", "none") if on_tensorrt else ("engine", "engines", "none")
        fitting = [name for name, drafter in DRAFTERS.items() if drafter.model in fits]
        return [*fitting, *WITHOUT_DRAFT]

    def _check_drafter(self) -> None:
        named, allowed = self.speculation.drafter, ["auto", *self._drafters]
        if named not in allowed:
            raise ValueError(
                f"speculation.drafter {named} does not run on the draft's engine "
                f"({self.engine_of(self.draft)}); allowed: {', '.join(allowed)}"
            )
        if self.has_small_draft and self.engine_of(self.draft_small) == "tensorrt_llm":
            raise ValueError(
                "draft_small does not run on engine tensorrt_llm; "
                "set draft_small.engine to auto, openvino or torch"
            )

    def engine_of(self, model: ModelSettings) -> EngineName:
        """What runs one of the two models."""
        return model.engine or self.engine

    def _check_dtype(self, role: str, model: ModelSettings) -> None:
        on_tensorrt = self.engine_of(model) == "tensorrt_llm"
        place = "engine tensorrt_llm" if on_tensorrt else f"device {model.device}"
        on_processor = model.device == "cpu" and not on_tensorrt
        missing = {"float16"} if on_processor else {"int8", "int4"}
        if model.dtype in missing:
            allowed = {"auto", "float16", "bfloat16", "float32", "int8", "int4"} - missing
            raise ValueError(
                f"{role}.dtype {model.dtype} does not run on {place}; "
                f"allowed: {', '.join(sorted(allowed))}"
            )

    def _check_shared_devices(self) -> None:
        target, draft = self.target.tensorrt_llm, self.draft.tensorrt_llm
        shared = sorted(set(target.devices) & set(draft.devices))
        if shared and target.kv_fraction + draft.kv_fraction >= 1:
            raise ValueError(
                f"target and draft share device {', '.join(map(str, shared))}, and their "
                f"tensorrt_llm.kv_fraction ({target.kv_fraction:g} and {draft.kv_fraction:g}) "
                "must stay below 1 together; give the draft other devices, or both a smaller share"
            )

    def _check_tensorrt_target(self) -> None:
        runtime = self.target.tensorrt_llm
        if PACINGS[self.decoding].waits:
            allowed = " or ".join(name for name, pacing in PACINGS.items() if not pacing.waits)
            raise ValueError(
                f"speculation.decoding must be {allowed} where the target's engine is "
                "tensorrt_llm: its loop waits for no draft"
            )
        if self.drafter in WITHOUT_DRAFT:
            raise ValueError(
                f"speculation.drafter {self.drafter} is not served where the target's engine is "
                "tensorrt_llm: its hook asks the draft's tree alone; give it a draft"
            )
        if runtime.tensor_parallel > 1 and not runtime.tensor_parallel_candidates:
            raise ValueError(
                f"target.tensorrt_llm.tensor_parallel is {runtime.tensor_parallel}: sharing "
                "candidates among ranks has not yet run on hardware; set "
                "target.tensorrt_llm.tensor_parallel_candidates: true to try it"
            )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)
