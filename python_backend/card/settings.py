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
Decoding = Literal["card", "draft_then_verify", "autoregressive"]
_Model = TypeVar("_Model", bound="ModelSettings")


class SettingsError(ValueError):
    """The settings are unusable; the message says which field, which value and what is allowed."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(_Section):
    """One model of the pair and where it runs."""

    path: Path
    """Hugging Face directory: config.json, *.safetensors, tokenizer.json."""
    device: Annotated[str, Field(pattern=r"^cpu$")] = "cpu"
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """``auto``: bfloat16 where the processor computes in it, else float32."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Intra-operation threads of this model's process."""


class TargetSettings(ModelSettings):
    """The model whose text is served; by default the bundled one."""

    path: Path = REPOSITORY_ROOT / "models/target"


class DraftSettings(ModelSettings):
    """The model that fills the candidate cache; by default the bundled one."""

    path: Path = REPOSITORY_ROOT / "models/draft"


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
    """Tokens guessed from the text, at most: behind the likeliest node of a draft pass, and behind
    a chain that leaves rows of a target pass unused; 0: none."""
    query: Literal["chain", "subtree"] = "chain"
    branches: Annotated[int, Field(ge=1, le=8)] = 4
    """Most root-to-leaf paths of a subtree query; each keeps a replica of the target's KV cache."""
    rows: Rows | Literal["auto"] = "auto"
    """Rows of one target pass (the last committed token and its candidates); ``auto`` chooses from
    the cost curve measured at load."""
    gamma: Annotated[int, Field(ge=1, le=32)] = 8
    """Chain length of draft-then-verify."""


class CacheSettings(_Section):
    """Geometry of the candidate cache."""

    slots: Annotated[int, Field(ge=1, le=256)] = 16
    nodes: Annotated[int, Field(ge=64, le=8192)] = 512
    """Most candidate nodes of one tree."""
    directory: Path = Path("/dev/shm")
    """Shared-memory mount that holds the pool."""


class LimitSettings(_Section):
    """What one request may ask for; more is refused by name."""

    prompt_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 960
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 1024
    context_tokens: Annotated[int, Field(ge=2, le=1 << 20)] = 1024
    """Prompt and output together; at most what the models were built for."""
    default_max_tokens: Annotated[int, Field(ge=1)] = 256
    """Output limit of a request that names none."""
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


class Settings(BaseSettings):
    """Everything that can be set. Frozen: a running process never changes its mind."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    engine: Literal["torch"] = "torch"
    target: TargetSettings = TargetSettings()
    draft: DraftSettings = DraftSettings()
    speculation: SpeculationSettings = SpeculationSettings()
    cache: CacheSettings = CacheSettings()
    limits: LimitSettings = LimitSettings()
    serving: ServingSettings = ServingSettings()

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
        return self

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
    except yaml.YAMLError as error:
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
