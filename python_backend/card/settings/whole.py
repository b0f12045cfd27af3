"""All sections together, and what must hold between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, SettingsConfigDict
from pydantic_settings import PydanticBaseSettingsSource as Source

from card.settings.limits import CacheSettings, LimitSettings
from card.settings.models import (
    GUESTS,
    DraftSettings,
    EngineName,
    ModelSettings,
    SmallDraftSettings,
    TargetSettings,
)
from card.settings.serving import ObservabilitySettings, ServingSettings
from card.settings.speculation import SpeculationSettings
from card.speculation.control import CHOOSES_ROWS
from card.speculation.drafters import DRAFTERS
from card.speculation.pacing import PACINGS
from card.speculation.sources import SHAPES, WITHOUT_DRAFT

Role = Literal["draft", "target"]
ENVIRONMENT_PREFIX = "CARD_"


def _dtypes(engine: EngineName, device: str) -> tuple[str, ...]:
    """The values of `dtype` that this engine takes on this device."""
    if engine in GUESTS:
        return "auto", "bfloat16", "float16", "float32"
    if device != "cpu":
        return "auto", "bfloat16", "float16"
    return "auto", "bfloat16", "float32", "int8", "int4"


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
    )

    engine: EngineName = Field(
        "auto", description="For models that name none. auto: OpenVINO or torch."
    )
    target: TargetSettings = TargetSettings()
    draft: DraftSettings = DraftSettings()
    draft_small: SmallDraftSettings = SmallDraftSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    cache: CacheSettings = CacheSettings()
    limits: LimitSettings = Field(default_factory=LimitSettings)
    serving: ServingSettings = ServingSettings()
    observability: ObservabilitySettings = ObservabilitySettings()

    @model_validator(mode="before")
    @classmethod
    def _without_draft(cls, given: dict[str, Any]) -> dict[str, Any]:
        """`draft: null` is another way to say that the target proposes by itself."""
        if given.get("draft", ...) is not None:
            return given
        speculation: dict[str, Any] = {"drafter": "auto", **(given.get("speculation") or {})}
        if speculation["drafter"] not in ("auto", *WITHOUT_DRAFT):
            raise ValueError(f"draft is null, but speculation.drafter is {speculation['drafter']}")
        if speculation["drafter"] == "auto":
            speculation["drafter"] = WITHOUT_DRAFT[0]
        return {k: v for k, v in given.items() if k != "draft"} | {"speculation": speculation}

    @model_validator(mode="after")
    def _agree(self) -> Settings:
        if problem := next(self._disagreements(), None):
            raise ValueError(problem)
        return self

    def _disagreements(self) -> Iterator[str]:
        """Conflicts between fields of different sections, each cause before its consequences."""
        limits, drafter = self.limits, self.speculation.drafter
        context, prompt = limits.context_tokens, limits.prompt_tokens
        if prompt >= context:
            yield f"limits.prompt_tokens ({prompt}) must be below limits.context_tokens ({context})"
        if (default := limits.default_max_tokens) > limits.max_tokens:
            yield (
                f"limits.default_max_tokens ({default}) must be at most limits.max_tokens "
                f"({limits.max_tokens})"
            )
        if drafter not in ("auto", *self._drafters):
            yield (
                f"speculation.drafter {drafter} does not run on the draft's engine "
                f"({self.engine_of(self.draft)}); allowed: auto, {', '.join(self._drafters)}"
            )
        models: dict[str, ModelSettings] = {"target": self.target, "draft": self.draft}
        if self.has_small_draft:
            models["draft_small"] = self.draft_small
        for name, model in models.items():
            engine = self.engine_of(model)
            if name == "draft_small" and engine in GUESTS:
                yield f"draft_small.engine is {engine}; allowed: auto, openvino, torch"
            if engine == "vllm" and model.device != "cpu":
                yield (
                    f"{name}.device is {model.device}; engine vllm takes CUDA devices as "
                    f"{name}.vllm.devices"
                )
            if engine == "openvino" and model.device != "cpu":
                yield f"{name}.device is {model.device}, and its engine openvino runs on cpu alone"
            if model.dtype not in (dtypes := _dtypes(engine, model.device)):
                place = "" if engine in GUESTS else f" on {model.device}"
                yield (
                    f"{name}.dtype {model.dtype} does not run under engine {engine}{place}; "
                    f"allowed: {', '.join(dtypes)}"
                )
        if self.guest is not None and PACINGS[self.decoding].waits:
            pacings = ", ".join(name for name, pacing in PACINGS.items() if not pacing.waits)
            yield (
                f"speculation.decoding {self.decoding} waits for the draft, which the target's "
                f"engine {self.guest} cannot; allowed: {pacings}"
            )
        if self.guest == "vllm" and not SHAPES[self.speculation.query].is_chain:
            yield (
                f"speculation.query is {self.speculation.query}, and engine vllm verifies one "
                "path; allowed: chain"
            )
        if self.guest == "tensorrt_llm":
            yield from self._unserved_by_tensorrt()

    def _unserved_by_tensorrt(self) -> Iterator[str]:
        """Settings that a target under TensorRT-LLM does not serve."""
        target, draft = self.target.tensorrt_llm, self.draft.tensorrt_llm
        if self.drafter in WITHOUT_DRAFT:
            yield f"speculation.drafter is {self.drafter}; engine tensorrt_llm needs a draft"
        if target.tensor_parallel > 1 and not target.tensor_parallel_candidates:
            yield (
                f"target.tensorrt_llm.tensor_parallel is {target.tensor_parallel}, which has not "
                "run on hardware; set target.tensorrt_llm.tensor_parallel_candidates: true to try"
            )
        shared = set(target.devices) & set(draft.devices)
        on_both = self.engine_of(self.draft) == "tensorrt_llm" and shared
        if on_both and target.kv_fraction + draft.kv_fraction >= 1:
            yield (
                f"target and draft share device {min(shared)}, and their tensorrt_llm.kv_fraction "
                f"({target.kv_fraction:g} and {draft.kv_fraction:g}) must stay below 1 together"
            )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: Source,
        env_settings: Source,
        *_: Source,
        **__: Source,
    ) -> tuple[Source, ...]:
        """Environment variables win over the arguments, which are the file's content, field by
        field: also where an argument is a section that was made already."""
        assert isinstance(init_settings, InitSettingsSource)
        init_settings.init_kwargs = {
            name: value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
            for name, value in init_settings.init_kwargs.items()
        }
        return env_settings, init_settings

    @property
    def decoding(self) -> str:
        """Registry key of the pacing of requests that name none."""
        return self.speculation.decoding

    @property
    def drafter(self) -> str:
        """Registry key of what makes candidates."""
        named = self.speculation.drafter
        return self._drafters[0] if named == "auto" else named

    @property
    def _drafters(self) -> list[str]:
        """Drafters that run on the draft's engine or without one, the preferred one first."""
        engine = self.engine_of(self.draft)
        fits = (engine, "none") if engine in GUESTS else ("engine", "engines", "head", "none")
        fitting = [name for name, drafter in DRAFTERS.items() if drafter.model in fits]
        return [*fitting, *WITHOUT_DRAFT]

    @property
    def proposals(self) -> str:
        """Registry key of the source that the target adds to a query."""
        return self.drafter if self.drafter in WITHOUT_DRAFT else self.speculation.proposals

    @property
    def roles(self) -> tuple[Role, ...]:
        """The models that are loaded."""
        return ("target",) if self.drafter in WITHOUT_DRAFT else ("draft", "target")

    @property
    def has_small_draft(self) -> bool:
        """Whether the draft's process loads `draft_small` too."""
        return self.drafter in DRAFTERS and DRAFTERS[self.drafter].model == "engines"

    @property
    def has_head(self) -> bool:
        """Whether the draft reads the target's hidden states."""
        return self.drafter in DRAFTERS and DRAFTERS[self.drafter].model == "head"

    @property
    def control(self) -> str:
        """Registry key of the controller."""
        named = self.speculation.control
        return CHOOSES_ROWS[self.speculation.rows == "auto"] if named == "auto" else named

    @property
    def draft_is_apart(self) -> bool:
        """Whether the draft takes no cores, and no device, from the target."""
        return not self._devices(self.target) & self._devices(self.draft)

    def engine_of(self, model: ModelSettings) -> EngineName:
        """The engine of one of the models."""
        return model.engine or self.engine

    @property
    def guest(self) -> EngineName | None:
        """The engine of another project that runs the target; None: one of ours runs it."""
        engine = self.engine_of(self.target)
        return engine if engine in GUESTS else None

    def _devices(self, model: TargetSettings | DraftSettings) -> set[str]:
        if self.engine_of(model) == "tensorrt_llm":
            return {f"cuda:{device}" for device in model.tensorrt_llm.devices}
        if self.engine_of(model) == "vllm":
            return {f"cuda:{device}" for device in model.vllm.devices} or {"cpu"}
        return {"cuda:0" if model.device == "cuda" else model.device}
