"""A model loaded again in the same service is not examined again, unless anything changed."""

from __future__ import annotations

import itertools
import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from this_processor import skip_unless_computed_in

from card.engines import Engine, EngineError
from card.engines.calibration import ConfigurableEngine, known_invariant
from card.engines.calibration_cache import (
    CALIBRATION_CACHE_VARIABLE,
    CalibrationCache,
    Subject,
)
from card.engines.interface import RowCosts
from card.engines.openvino.engine import OpenVinoEngine
from card.loading import Examination, load_engine
from card.settings import Role, Settings, load_settings


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    tiny_models.save_pair(directory)
    return directory


@pytest.fixture
def pair(saved: Path, tmp_path: Path) -> Settings:
    """A pair of the test's own."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    engine = {"dtype": "float32", "engine": "openvino"}
    return load_settings(
        target=engine | {"path": str(tmp_path / "target")},
        draft=engine | {"path": str(tmp_path / "draft")},
        limits={"prompt_tokens": 32, "context_tokens": 128},
        cache={"slots": 2},
    )


def load(settings: Settings, role: Role, examination: Examination) -> Engine:
    """With one graph, which is soon compiled."""
    rows = (64,) if role == "draft" else (1,)
    return load_engine(settings, role, graph_rows=rows, examination=examination)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that a supervisor names to its models; the first of them makes it."""
    directory = tmp_path / "of this service" / "calibration"
    monkeypatch.setenv(CALIBRATION_CACHE_VARIABLE, str(directory))
    return directory


class Examined:
    """What was tried at load, in order. None of it is done: whether it would be is the question."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._costs = itertools.count(1)
        self._whole = Examination(self._make_row_invariant, self._run_largest_passes, self._measure)

    def load(self, settings: Settings, role: Role) -> Engine:
        return load(settings, role, self._whole)

    def _make_row_invariant(self, engine: ConfigurableEngine) -> ConfigurableEngine:
        self.seen.append("make_row_invariant")
        return known_invariant(engine, engine.options)

    def _run_largest_passes(self, engine: Engine) -> None:
        self.seen.append("run_largest_passes")

    def _measure(self, engine: Engine) -> RowCosts:
        self.seen.append("measure_row_costs")
        return RowCosts({1: float(next(self._costs))})


@pytest.fixture
def examined() -> Examined:
    return Examined()


OF_DRAFT = ["run_largest_passes", "measure_row_costs"]
OF_TARGET = ["make_row_invariant", *OF_DRAFT]
KNOWN = ["run_largest_passes"]
"""Memory is taken at once by a model that is known, too."""


@pytest.mark.usefixtures("service")
def test_a_second_load_knows_what_the_first_found_out(pair: Settings, examined: Examined) -> None:
    first = examined.load(pair, "target")
    assert examined.seen == OF_TARGET
    second = examined.load(pair, "target")
    assert examined.seen == OF_TARGET + KNOWN
    assert second.row_invariant
    assert second.row_costs_ms == first.row_costs_ms
    examined.load(pair, "draft")
    assert examined.seen == OF_TARGET + KNOWN + OF_DRAFT
    examined.load(pair, "draft")
    assert examined.seen == OF_TARGET + KNOWN + OF_DRAFT + KNOWN


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_checkpoint_that_was_written_anew_is_examined_anew(
    pair: Settings, examined: Examined, file: str
) -> None:
    examined.load(pair, "target")
    path = pair.target.path / file
    path.write_bytes(path.read_bytes())
    examined.load(pair, "target")
    assert examined.seen == 2 * OF_TARGET


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "torch"},
        {"versions": {"python": "3.10.0"}},
        {"processor": "another"},
        {"variables": {"ONEDNN_MAX_CPU_ISA": "AVX2"}},
        {"files": (("elsewhere", 1, 1),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_nothing_is_believed_about_another_subject(
    pair: Settings, service: Path, examined: Examined, change: dict[str, Any]
) -> None:
    examined.load(pair, "target")
    (file,) = service.glob("*.json")
    subject = Subject.model_validate(json.loads(file.read_bytes())["subject"])
    same = CalibrationCache(service, "target", subject)
    assert same.recall() is not None
    other = CalibrationCache(service, "target", subject.model_copy(update=change))
    assert other.recall() is None
    file.rename(other.file)  # whatever a file is called, its content decides
    assert other.recall() is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: "",
        lambda kept: '{"subject": 1}',
        lambda kept: kept[:-20],
        lambda kept: re.sub('"alone_share": ?[^,}]+', '"alone_share": -1', kept),
        lambda kept: re.sub('"row_multiple": ?[^,}]+', '"row_multiple": 0', kept),
    ],
    ids=["empty", "another form", "cut off", "negative cost", "no padding"],
)
def test_a_broken_file_is_said_once_and_not_believed(
    pair: Settings,
    service: Path,
    examined: Examined,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[str], str],
) -> None:
    examined.load(pair, "target")
    (file,) = service.glob("*.json")
    kept = file.read_text()
    file.write_text(spoil(kept))
    with caplog.at_level(logging.WARNING):
        examined.load(pair, "target")
        examined.load(pair, "target")
    assert examined.seen == 2 * OF_TARGET + KNOWN  # mended by the second load
    (record,) = caplog.records
    assert str(file) in record.message


@pytest.mark.usefixtures("service")
def test_target_when_its_rows_influence_each_other_is_refused_and_not_cached(
    pair: Settings, service: Path
) -> None:
    with pytest.raises(EngineError, match=r"influence each other.*target\.dtype"):
        load(pair, "target", Examination(make_row_invariant=lambda engine: engine))
    assert not list(service.glob("*.json"))


@pytest.mark.usefixtures("service")
def test_where_rows_are_independent_in_float32_alone_a_target_is_loaded_so_and_remembered_so(
    pair: Settings,
) -> None:
    skip_unless_computed_in("bfloat16")
    seen: list[str] = []

    def only_in_float32(engine: ConfigurableEngine) -> ConfigurableEngine:
        seen.append(engine.options.dtype)
        in_float32 = engine.options.dtype == "float32"
        return known_invariant(engine, engine.options) if in_float32 else engine

    examination = Examination(
        only_in_float32, lambda _: seen.append("warm up"), lambda _: RowCosts({1: 1.0})
    )
    wants_any = pair.target.model_copy(update={"dtype": "auto"})
    for _ in range(2):
        engine = load(pair.model_copy(update={"target": wants_any}), "target", examination)
        assert isinstance(engine, OpenVinoEngine)
        assert engine.row_invariant
        assert engine.options.dtype == "float32"
    assert seen == ["bfloat16", "float32", "warm up", "warm up"]
