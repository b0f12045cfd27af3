"""The one settings file: models, speculation, cache, limits and serving.

Values come from a YAML file, then from environment variables (``CARD_LIMITS__MAX_TOKENS=256``),
and are validated together: an error names the field, its value and what is allowed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from pydantic_settings import SettingsError as SourceError

ENVIRONMENT_PREFIX = "CARD_"
SETTINGS_VARIABLE = "CARD_SETTINGS"
"""Environment variable naming the settings file; every Triton model process reads it."""

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]

Rows = Annotated[int, Field(ge=1, le=64)]
EngineName = Literal["auto", "openvino", "torch", "tensorrt_llm"]
"""``auto``: OpenVINO on a processor where it is installed, else torch."""
Decoding = Literal["card", "pearl", "draft_then_verify", "autoregressive"]
LogFormat = Literal["text", "json"]
_Model = TypeVar("_Model", bound="ModelSettings")


class SettingsError(ValueError):
    """The settings are unusable; the message says which field, which value and what is allowed."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorRTSettings(_Section):
    """How TensorRT-LLM runs a model; read only where that is its engine."""

    devices: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0,)
    """CUDA devices of this model alone, one per tensor-parallel rank, as `nvidia-smi` counts."""
    tensor_parallel: Annotated[int, Field(ge=1, le=16)] = 1
    kv_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """Share of the memory that is free after the weights for the KV cache; when two models share
    a device, the shares together must stay below 1."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    kv_block_tokens: Annotated[int, Field(ge=8, le=128)] = 32
    """Positions per KV block; a power of two. Requests share whole blocks of a common prefix."""
    kv_reuse: bool = True
    """Whether requests share the KV blocks of a common prefix."""
    quantization: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] = "auto"
    """What the checkpoint must be quantized to, as its hf_quant_config.json says it in lower case
    (fp8, nvfp4, w4a16_awq, ...); ``none``: not at all; ``auto``: whatever it is."""
    chunked_prefill: bool = True
    batch_tokens: Annotated[int, Field(ge=64, le=1 << 20)] = 8192
    """Most tokens of one pass; longer prompts are prefilled in chunks of at most so many."""
    cuda_graphs: bool = True
    stall_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """With requests open and no token from any of them for so long the model is loaded again."""

    @model_validator(mode="after")
    def _one_device_per_rank(self) -> TensorRTSettings:
        if not len(set(self.devices)) == len(self.devices) == self.tensor_parallel:
            raise ValueError(
                f"devices {list(self.devices)} must name {self.tensor_parallel} different "
                "device(s), one per rank (tensor_parallel)"
            )
        if self.kv_block_tokens & (self.kv_block_tokens - 1):
            raise ValueError(f"kv_block_tokens ({self.kv_block_tokens}) must be a power of two")
        return self


class TargetTensorRTSettings(TensorRTSettings):
    """The target under TensorRT-LLM; it verifies `speculation.rows` - 1 candidates (auto: 7)."""

    kv_reuse: bool = False
    """Off until it has run on hardware: whether rejected candidates can enter shared blocks of a
    user-provided drafter was not found out, and NVIDIA's own test of it turns reuse off."""
    unproven_parameters: Literal["without_speculation", "refuse"] = "without_speculation"
    """Requests with parameters that the runtime does not promise to honour beside candidates
    (penalties, min_tokens, bad_words, return_log_probs, seed when sampling)."""
    tensor_parallel_candidates: bool = False
    """Rank 0 asks the cache and tells the other ranks. Not yet run on hardware, so a
    tensor-parallel target is refused without it."""


class DraftTensorRTSettings(TensorRTSettings):
    """The draft under TensorRT-LLM: one spine per session and a few side branches."""

    side_branches: Annotated[int, Field(ge=0, le=8)] = 2
    """Side branches that grow at once per session, each a request that shares the prefix."""
    side_branch_tokens: Annotated[int, Field(ge=1, le=64)] = 8
    """How far a side branch grows."""


class ModelSettings(_Section):
    """One model of the pair and where it runs."""

    path: Path
    """Hugging Face directory: config.json, *.safetensors, tokenizer.json."""
    engine: EngineName | None = None
    """What runs this model; absent: the `engine` of the whole. The section `tensorrt_llm` is for
    that one; `device`, `dtype` and `threads` are for all others."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")] = "cpu"
    """``cpu``, ``cuda`` (the first device) or ``cuda:N``. Not yet run on hardware: CUDA."""
    dtype: Literal["auto", "float16", "bfloat16", "float32", "int8"] = "auto"
    """``auto``: bfloat16 where the device computes in it, else float32 on a processor and float16
    on a CUDA device. ``float16`` is for CUDA alone. ``int8`` (OpenVINO alone) halves the bytes of
    a pass and gives another, slightly worse model."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Intra-operation threads of this model's process."""

    @model_validator(mode="after")
    def _dtype_of_device(self) -> ModelSettings:
        missing = "float16" if self.device == "cpu" else "int8"
        if self.dtype == missing:
            allowed = {"auto", "float16", "bfloat16", "float32", "int8"} - {missing}
            raise ValueError(
                f"dtype {missing} does not run on device {self.device}; "
                f"allowed: {', '.join(sorted(allowed))}"
            )
        return self


class TargetSettings(ModelSettings):
    """The model whose text is served; by default the bundled one."""

    path: Path = REPOSITORY_ROOT / "models/target"
    tensorrt_llm: TargetTensorRTSettings = TargetTensorRTSettings()


class DraftSettings(ModelSettings):
    """The model that fills the candidate cache; by default the bundled one."""

    path: Path = REPOSITORY_ROOT / "models/draft"
    tensorrt_llm: DraftTensorRTSettings = DraftTensorRTSettings()


class SpeculationSettings(_Section):
    """How the draft grows its tree and what the target takes from it."""

    decoding: Decoding = "card"
    """Used when a request names none."""
    growth: Literal["best_first", "layered"] = "best_first"
    width: Annotated[int, Field(ge=1, le=32)] = 4
    """Nodes that one draft pass expands."""
    depth: Annotated[int, Field(ge=1, le=128)] = 32
    """How many tokens the tree may run ahead of what is committed."""
    lookahead: Annotated[int, Field(ge=0, le=16)] = 6
    """Tokens guessed from the text, at most: behind a chain that leaves rows of a target pass
    unused, behind a text that the draft has just read, and (two at most) behind the likeliest node
    of a draft pass; 0: none."""
    query: Literal["chain", "subtree"] = "chain"
    branches: Annotated[int, Field(ge=1, le=8)] = 4
    """Most root-to-leaf paths of a subtree query; each keeps a replica of the target's KV cache."""
    rows: Rows | Literal["auto"] = "auto"
    """Rows of one target pass (the last committed token and its candidates); ``auto`` chooses from
    the cost curve measured at load."""
    gamma: Annotated[int, Field(ge=1, le=32)] = 8
    """Chain length of draft-then-verify and PEARL."""


class CacheSettings(_Section):
    """Geometry of the candidate cache."""

    slots: Annotated[int, Field(ge=1, le=256)] = 16
    nodes: Annotated[int, Field(ge=64, le=8192)] = 512
    """Most candidate nodes of one tree."""
    directory: Path = Path("/dev/shm")
    """Shared-memory mount that holds the pool."""


class LimitSettings(_Section):
    """What one request may ask for; more is refused by name."""

    context_tokens: Annotated[int, Field(ge=2, le=1 << 20)] = 2304
    """Prompt and output together; at most what the models were built for."""
    prompt_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        default_factory=lambda set_: min(2048, set_["context_tokens"] - 1)
    )
    """Default: 2048, or what a smaller context leaves."""
    prompt_bytes: Annotated[int, Field(ge=1, le=1 << 26)] = Field(
        default_factory=lambda set_: max(4096, 32 * set_["prompt_tokens"])
    )
    """Longer texts are refused before they are tokenized, which would hold up everybody else;
    default: 32 for each of `prompt_tokens`."""
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 1024
    default_max_tokens: Annotated[int, Field(ge=1)] = Field(
        default_factory=lambda set_: min(256, set_["max_tokens"])
    )
    """Output limit of a request that names none; default: 256, or a smaller `max_tokens`."""
    queued_requests: Annotated[int, Field(ge=0, le=65536)] = 64
    """Requests that may wait for a slot; one more is UNAVAILABLE at once."""
    queue_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    stop_words: Annotated[int, Field(ge=0, le=256)] = 16
    bad_words: Annotated[int, Field(ge=0, le=256)] = 32
    word_bytes: Annotated[int, Field(ge=1, le=65536)] = 256
    """Longest stop word or bad word in UTF-8 bytes."""
    bad_word_tokens: Annotated[int, Field(ge=1, le=65536)] = 512
    """Token ids of all bad words of one request together."""


class ServingSettings(_Section):
    """Triton and the supervisor."""

    address: str = "127.0.0.1"
    http_port: Annotated[int, Field(ge=1, le=65535)] = 8000
    grpc_port: Annotated[int, Field(ge=1, le=65535)] = 8001
    metrics_port: Annotated[int, Field(ge=1, le=65535)] = 8002
    health_port: Annotated[int, Field(ge=1, le=65535)] = 8003
    """The supervisor's own liveness and readiness."""
    flush_ms: Annotated[float, Field(ge=0, le=1000)] = 20.0
    """Deltas after the first are gathered for at most this long."""
    prefill_chunk: Annotated[int, Field(ge=8, le=256)] = 64
    """Prompt tokens of one session that one pass may take."""
    engine_timeout_s: Annotated[float, Field(gt=0, le=600)] = 2.0
    """An engine silent for longer is killed and loaded again."""
    load_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """How long open streams may finish after SIGTERM."""
    tritonserver: Path | None = None
    """A tritonserver binary; absent: the container's, else the one that the wheel carries."""
    triton_arguments: tuple[str, ...] = ()
    """Further options for tritonserver, passed through (TLS, logging)."""


class ObservabilitySettings(_Section):
    """Logs and traces; metrics are always on."""

    log_format: LogFormat = "text"
    """Lines of the supervisor and the models: `key=value` pairs, or one JSON object each."""
    log_requests: bool = True
    """One line per request: its id, how it ended, tokens and times."""
    log_prompts: bool = False
    """Put prompts, and the refused values of other inputs, into the log too."""
    trace_url: Annotated[str, Field(pattern=r"^https?://[^\s,]+$")] | None = None
    """OTLP/HTTP collector of OpenTelemetry traces (http://HOST:4318/v1/traces); absent: none."""
    trace_rate: Annotated[int, Field(ge=1)] = 100
    """One request in so many is traced, besides those whose client sent a `traceparent`."""


class Settings(BaseSettings):
    """Everything that can be set. Frozen: a running process never changes its mind."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    engine: EngineName = "auto"
    """What runs both models, unless one names its own."""
    target: TargetSettings = TargetSettings()
    draft: DraftSettings = DraftSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    cache: CacheSettings = CacheSettings()
    limits: LimitSettings = Field(default_factory=lambda: LimitSettings.model_validate({}))
    serving: ServingSettings = ServingSettings()
    observability: ObservabilitySettings = ObservabilitySettings()

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
        for role, model in (("target", self.target), ("draft", self.draft)):
            if model.device != "cpu" and self.engine_of(model) == "openvino":
                raise ValueError(
                    f"{role}.device is {model.device} and its engine is openvino, which runs on "
                    "cpu; set the engine to auto or torch"
                )
        if self.engine_of(self.target) == "tensorrt_llm":
            self._check_tensorrt_target()
        return self

    def engine_of(self, model: ModelSettings) -> EngineName:
        """What runs one of the two models."""
        return model.engine or self.engine

    def _check_tensorrt_target(self) -> None:
        how = self.target.tensorrt_llm
        if self.speculation.decoding in ("draft_then_verify", "pearl"):
            raise ValueError(
                "speculation.decoding must be card or autoregressive where the target's engine is "
                "tensorrt_llm: its loop waits for no draft"
            )
        if how.tensor_parallel > 1 and not how.tensor_parallel_candidates:
            raise ValueError(
                f"target.tensorrt_llm.tensor_parallel is {how.tensor_parallel}: sharing "
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


def load_settings(file: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings from `file` (or ``$CARD_SETTINGS``, or defaults alone) and the environment.

    Relative model paths are taken from the file's folder; without a file, from the repository.
    `overrides` are top-level sections that win over both (used by tests and the benchmark).

    Raises `SettingsError` naming every wrong field.
    """
    if file is None and (named := os.environ.get(SETTINGS_VARIABLE)):
        file = Path(named)
    if file is not None:
        file = file.resolve()
        _check_fields(file)

    class FromFile(Settings):
        model_config = SettingsConfigDict(yaml_file=file, yaml_file_encoding="utf-8")

    # $CARD_SETTINGS itself carries the prefix of the environment overrides; it is no field.
    try:
        settings = FromFile(**overrides)
    except ValidationError as error:
        raise SettingsError(_explain(error, file)) from error
    except SourceError as error:
        # A whole section in one environment variable must be JSON.
        raise SettingsError(f"settings: {error}: {error.__cause__}") from error
    base = file.parent if file is not None else REPOSITORY_ROOT
    return Settings.model_construct(
        **{name: getattr(settings, name) for name in Settings.model_fields}
        | {"target": _anchored(settings.target, base), "draft": _anchored(settings.draft, base)}
    )


def _anchored(model: _Model, base: Path) -> _Model:
    return model.model_copy(update={"path": (base / model.path).resolve()})


def _check_fields(file: Path) -> None:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"settings file {file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {file} cannot be read: {error}") from error
    # Numbers of thousands of digits, impossible dates and bottomless nesting are no YAMLError.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise SettingsError(f"settings file {file} is not valid YAML: {problem}") from error
    sections = ", ".join(Settings.model_fields)
    if content is not None and not isinstance(content, dict):
        raise SettingsError(
            f"settings file {file} must hold a mapping of sections ({sections}), "
            f"not {type(content).__name__}"
        )
    for name in content or ():
        if name not in Settings.model_fields:
            raise SettingsError(f"settings file {file}: {name!r} is no field; allowed: {sections}")


def _explain(error: ValidationError, file: Path | None) -> str:
    source = f"settings file {file}" if file is not None else "settings"
    lines = []
    for problem in error.errors():
        if problem["type"] == "default_factory_not_called":
            continue  # it follows from another field, which is named itself
        field = ".".join(str(part) for part in problem["loc"]) or "settings"
        value = problem.get("input")
        shown = "" if isinstance(value, (dict, BaseModel)) else f" (got {value!r})"
        message = problem["msg"]
        if problem["type"] == "extra_forbidden":
            message = f"no such field; allowed: {', '.join(_fields_beside(problem['loc']))}"
        lines.append(f"{field}: {message}{shown}")
    return f"{source}: " + "; ".join(lines)


def _fields_beside(place: tuple[int | str, ...]) -> list[str]:
    """Names that may stand where an error was found."""
    model: type[BaseModel] = Settings
    for part in place[:-1]:
        found = model.model_fields[str(part)].annotation
        assert isinstance(found, type)
        assert issubclass(found, BaseModel)
        model = found
    return list(model.model_fields)
