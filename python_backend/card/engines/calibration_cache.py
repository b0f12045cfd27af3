"""Keeps a model's calibration for its next load in the same service; and for the next start of the
service where `serving.calibration_cache` names a directory.

Calibration takes longer than the rest of a load, and a dead model must return soon. A load uses a
kept calibration only if its whole `Subject` is unchanged. Otherwise, and outside a service, the
load calibrates again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import platform
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from card.cores import usable_cores
from card.engines.interface import RowCosts
from card.engines.options import EngineOptions
from card.engines.processor import describe_processor
from model_files.gguf.part_names import parts_of

log = logging.getLogger(__name__)

CALIBRATION_CACHE_VARIABLE = "CARD_CALIBRATION_CACHE"
"""Environment variable of the server and its models that names the directory."""

_SOURCES = Path(__file__).parent
_PACKAGES = ("card-triton", "numpy", "openvino", "tbb", "torch")
_CHOOSING = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_", "OV_")
"""Prefixes of environment variables that choose how products are computed."""


class _Record(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64"
    )


class Subject(_Record):
    """Everything that a calibration depends on.

    files      (path, size, mtime_ns) of the checkpoint's files and of the engines' source
    options    `EngineOptions` by field; sessions as in the examination, and no kept texts
    versions   versions of Python and packages
    variables  environment variables that choose how products are computed
    processor  the processor, and the number of cores that this process may use
    """

    engine: str
    files: tuple[tuple[str, int, int], ...]
    options: dict[str, int | str | tuple[int, ...]]
    versions: dict[str, str]
    variables: dict[str, str]
    processor: str

    @classmethod
    def of(cls, engine: str, checkpoint: Path, options: EngineOptions) -> Subject:
        """The present subject. Raises `OSError` if a file cannot be read."""
        models = checkpoint.iterdir() if checkpoint.is_dir() else parts_of(checkpoint)
        files = (*(file.resolve() for file in models), *_SOURCES.rglob("*.py"))
        return cls(
            engine=engine,
            files=tuple(sorted(_stamps(files))),
            options=asdict(replace(options, sessions=options.examined_sessions, kept_tokens=0)),
            versions={"python": platform.python_version()}
            | {package: _version(package) for package in _PACKAGES},
            variables={k: v for k, v in sorted(os.environ.items()) if k.startswith(_CHOOSING)},
            processor=f"{usable_cores()} cores of {describe_processor()}",
        )


_Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Calibration(_Record):
    """The result of a calibration: options that make rows independent, factors of smoothed
    matrices, whether more threads compute the same bits, and costs of passes.

    is_final  whether threads and costs are those of the final decoders, and not of a decoder that
              serves until these are compiled
    """

    row_multiple: Annotated[int, Field(ge=1)]
    graph_rows: tuple[Annotated[int, Field(ge=1)], ...]
    compressed: bool
    in_float32: bool
    smoothing: bytes
    threads_alone: Annotated[int, Field(ge=0)]
    pass_ms: Annotated[dict[Annotated[int, Field(ge=1)], _Milliseconds], Field(min_length=1)]
    alone_share: Annotated[float, Field(gt=0, le=1)]
    is_final: bool

    @classmethod
    def of(cls, options: EngineOptions, costs: RowCosts, *, is_final: bool = True) -> Calibration:
        return cls(
            row_multiple=options.row_multiple,
            graph_rows=options.graph_rows,
            compressed=options.compressed,
            in_float32=options.dtype == "float32",
            smoothing=options.smoothing,
            threads_alone=options.threads_alone,
            pass_ms=costs.pass_ms,
            alone_share=costs.alone_share,
            is_final=is_final,
        )

    def applied_to(self, options: EngineOptions) -> EngineOptions:
        """Options with the calibrated padding and formats, and no more threads than are both
        correct and wanted."""
        return replace(
            options,
            row_multiple=self.row_multiple,
            graph_rows=self.graph_rows,
            compressed=self.compressed,
            dtype="float32" if self.in_float32 else options.dtype,
            smoothing=self.smoothing,
            threads_alone=min(self.threads_alone, options.threads_alone),
        )

    @property
    def costs(self) -> RowCosts:
        return RowCosts(dict(self.pass_ms), self.alone_share)


class _Entry(_Record):
    subject: Subject
    calibration: Calibration


class CalibrationCache:
    """One subject's file in the service's directory; without a subject nothing is kept."""

    def __init__(self, directory: Path, role: str, subject: Subject | None) -> None:
        told_apart = hashlib.sha256(repr(subject).encode()).hexdigest()[:16]
        self.file = directory / f"{role}-{told_apart}.json"
        self._subject = subject

    @classmethod
    def of_this_service(
        cls, role: Literal["draft", "target"], engine: str, checkpoint: Path, options: EngineOptions
    ) -> CalibrationCache:
        """The cache of the supervisor that started this process, if any.

        Call this before reading the checkpoint, so that a file that changes meanwhile counts as
        changed at the next load.
        """
        named = os.environ.get(CALIBRATION_CACHE_VARIABLE)
        subject = None
        # The subject describes the processor, but no GPU.
        if named and options.device == "cpu":
            with contextlib.suppress(OSError):  # the load reports a missing file
                subject = Subject.of(engine, checkpoint, options)
        return cls(Path(named or ""), role, subject)

    @property
    def directory(self) -> Path | None:
        """Directory of this service's calibrations; None: the service keeps none."""
        return None if self._subject is None else self.file.parent

    def recall(self) -> Calibration | None:
        """The kept calibration of exactly this subject; None: there is none."""
        if self._subject is None:
            return None
        try:
            entry = _Entry.model_validate_json(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("%s is not used: %s", self.file, str(error).splitlines()[0])
            return None
        return entry.calibration if entry.subject == self._subject else None

    def remember(self, calibration: Calibration) -> None:
        """Keep the calibration for the next load; a failure only makes that load longer."""
        if self._subject is None:
            return
        entry = _Entry(subject=self._subject, calibration=calibration)
        try:
            # `realpath` follows a link that may lead to a directory that does not exist yet.
            directory = Path(os.path.realpath(self.file.parent))
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A unique name, because services may share the directory.
            with tempfile.TemporaryDirectory(dir=self.file.parent) as own:
                written = Path(own) / self.file.name
                written.write_text(entry.model_dump_json(), encoding="utf-8")
                written.replace(self.file)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.file, error)


def _stamps(files: Iterable[Path]) -> Iterable[tuple[str, int, int]]:
    for file in files:
        status = file.stat()
        # JSON cannot hold names that are not UTF-8; see `card.settings.paths.in_ascii`.
        name = str(file).encode(errors="backslashreplace").decode()
        yield name, status.st_size, status.st_mtime_ns


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
