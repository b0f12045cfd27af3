"""Devices, models and placements that are not here, and what a pass costs there.

Every figure stands in a YAML file beside its source (`presets/catalogue.yaml`). A pass costs the
time to read weights and KV cache at the bandwidth that is reached, or the arithmetic if that is
longer, plus an overhead per layer, two all-reduces per layer where the model is split, and an
overhead per pass (the roofline of Williams, Waterman, Patterson, CACM 2009, with latencies).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from planning.clock import Work
from planning.errors import PlanError
from planning.reading import read_yaml

PRESETS = Path(__file__).parent / "presets"
CATALOGUE = PRESETS / "catalogue.yaml"

Weights = Literal["bf16", "fp8", "int4"]
BYTES: dict[Weights, float] = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5625}
"""Bytes per weight of a layer; int4 in groups of 32 with a 16-bit scale each. Embedding and head
stay in 16 bits, as the published quantised checkpoints leave them."""

_USABLE_MEMORY = 0.9
"""Of a device's memory: the rest is the runtime's and the activations'."""

_ALL_REDUCES = 2
"""Per layer of a model split over devices: behind attention and behind the MLP."""


Positive = Annotated[float, Field(gt=0)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Entry):
    """The shape of a Llama-like decoder."""

    layers: Annotated[int, Field(ge=1)]
    hidden: Annotated[int, Field(ge=1)]
    heads: Annotated[int, Field(ge=1)]
    kv_heads: Annotated[int, Field(ge=1)]
    head_size: Annotated[int, Field(ge=1)]
    intermediate: Annotated[int, Field(ge=1)]
    vocabulary: Annotated[int, Field(ge=1)]
    tied: bool
    source: str

    @property
    def layer_weights(self) -> int:
        """Weights of all layers."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    def read_bytes(self, weights: Weights) -> float:
        """Bytes of weights that one pass reads; of the embedding it reads but a few rows."""
        return self.layer_weights * BYTES[weights] + self.head_weights * 2.0

    def stored_bytes(self, weights: Weights) -> float:
        return self.read_bytes(weights) + (0.0 if self.tied else self.head_weights * 2.0)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values of one position, in 16 bits."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


class Device(_Entry):
    """One accelerator, or one socket.

    efficiency          share of the bandwidth that a pass over weights reaches
    compute_tflops      dense arithmetic, by format of the weights; of it, too, a share is reached
    layer_us, pass_us   latencies that do not shrink with the bytes
    all_reduce_us       one all-reduce of a few rows over all devices of a model
    sharing             two processes at once: their kernels overlap and share the bandwidth, or
                        the device switches from one to the other
    """

    memory_gb: Positive
    bandwidth_gb_s: Positive
    efficiency: Annotated[float, Field(gt=0, le=1)]
    compute_tflops: dict[Weights, Positive]
    compute_efficiency: Annotated[float, Field(gt=0, le=1)]
    layer_us: Annotated[float, Field(ge=0)]
    pass_us: Annotated[float, Field(ge=0)]
    all_reduce_us: Annotated[float, Field(ge=0)]
    sharing: Literal["concurrent", "time_slice"]
    source: dict[str, str]

    @model_validator(mode="after")
    def _sources(self) -> Device:
        stated = set(type(self).model_fields) - {"source", "sharing"}
        if missing := sorted(stated - self.source.keys()):
            raise ValueError(
                f"source lacks {', '.join(missing)}: every figure names where it is from"
            )
        return self


class Placement(_Entry):
    """Where the two models of a pair run.

    draft_devices  0: the draft shares the target's (first) device
    """

    name: str
    device: str
    target_devices: Annotated[int, Field(ge=1, le=64)] = 1
    draft_devices: Annotated[int, Field(ge=0, le=64)] = 1
    target_weights: Weights = "bf16"
    draft_weights: Weights = "bf16"


class Agreement(_Entry):
    """A published figure about how well this pair agrees, for the reader."""

    value: str
    source: str


class Preset(_Entry):
    """A pair and its placements. Devices and models of its own win over the catalogue's."""

    title: str
    target: str
    draft: str
    context: Annotated[int, Field(ge=1)] = 1024
    bus_ms: Annotated[float, Field(ge=0)] = 0.01
    wake_ms: Annotated[float, Field(ge=0)] = 0.5
    agreements: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)] = [
        0.6,
        0.75,
        0.9,
    ]
    literature: list[Agreement] = []
    notes: list[str] = []
    placements: Annotated[list[Placement], Field(min_length=1)]
    devices: dict[str, Device] = {}
    models: dict[str, Model] = {}


class _Catalogue(_Entry):
    devices: dict[str, Device]
    models: dict[str, Model]


@dataclass(frozen=True)
class RooflineCost:
    """Passes of a model on `devices` devices; see the module's docstring.

    place  name of the device that is shared with the other model; "": its own
    """

    model: Model
    device: Device
    weights: Weights
    devices: int
    place: str = ""

    def work(self, rows: int, context: int) -> Work:
        memory = self._memory_ms(context)
        busy = max(memory, self._compute_ms(rows))
        ms = busy + self._latency_ms()
        demand = 0.0
        if self.place:
            demand = memory / ms if self.device.sharing == "concurrent" else 1.0
        return Work(ms, self.place, demand)

    def _memory_ms(self, context: int) -> float:
        model, device = self.model, self.device
        # Key/value heads cannot be split further than there are any.
        kv_share = min(self.devices, model.kv_heads)
        read = model.read_bytes(self.weights) / self.devices + model.kv_bytes * context / kv_share
        return read / (device.bandwidth_gb_s * device.efficiency) / 1e6

    def _compute_ms(self, rows: int) -> float:
        tflops = self.device.compute_tflops[self.weights] * self.device.compute_efficiency
        operations = 2 * (self.model.layer_weights + self.model.head_weights) * rows
        return operations / self.devices / tflops / 1e9

    def _latency_ms(self) -> float:
        per_layer = self.device.layer_us
        if self.devices > 1:
            per_layer += _ALL_REDUCES * self.device.all_reduce_us
        return (self.model.layers * per_layer + self.device.pass_us) / 1e3

    def fits_in(self, context: int) -> float:
        """Gigabytes that the model takes of each of its devices."""
        held = self.model.stored_bytes(self.weights) + self.model.kv_bytes * context
        return held / self.devices / 1e9


@dataclass(frozen=True)
class Scene:
    """A placement with everything looked up. `problem`: why it cannot be."""

    preset: Preset
    placement: Placement
    target: RooflineCost
    draft: RooflineCost

    @property
    def problem(self) -> str | None:
        usable = self.target.device.memory_gb * _USABLE_MEMORY
        needed = self.target.fits_in(self.preset.context)
        beside = self.draft.fits_in(self.preset.context)
        if not self.placement.draft_devices:
            needed += beside
        if max(needed, beside) > usable:
            return f"does not fit: {max(needed, beside):.0f} GB of {usable:.0f} usable on a device"
        return None


def read_preset(name: str) -> Preset:
    """A preset of this package by name, or a YAML file. Raises `PlanError`."""
    path = PRESETS / f"{name}.yaml"
    if name not in preset_names():
        path = Path(name)
        if not path.is_file():
            raise PlanError(
                f"{name!r} is neither a file nor a preset; presets: {', '.join(preset_names())}"
            )
    preset = read_yaml(path, Preset)
    _scenes_of(preset, path)
    return preset


def scenes(preset: Preset) -> list[Scene]:
    """All placements of a preset, looked up in it and in the catalogue."""
    return _scenes_of(preset, Path(preset.title))


def preset_names() -> list[str]:
    """The presets of this package."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml") if path != CATALOGUE)


def catalogue() -> tuple[dict[str, Device], dict[str, Model]]:
    """Known devices and models by name."""
    found = read_yaml(CATALOGUE, _Catalogue)
    return found.devices, found.models


def _scenes_of(preset: Preset, path: Path) -> list[Scene]:
    devices, models = catalogue()
    devices, models = {**devices, **preset.devices}, {**models, **preset.models}
    for name in (preset.target, preset.draft):
        if name not in models:
            raise PlanError(f"{path}: no model {name!r}; known: {', '.join(sorted(models))}")
    for name in {placement.device for placement in preset.placements}:
        if name not in devices:
            raise PlanError(f"{path}: no device {name!r}; known: {', '.join(sorted(devices))}")
    target, draft = models[preset.target], models[preset.draft]
    found = []
    for placement in preset.placements:
        device = devices[placement.device]
        for weights in (placement.target_weights, placement.draft_weights):
            if weights not in device.compute_tflops:
                raise PlanError(
                    f"{path}: {placement.device} computes nothing in {weights}; "
                    f"known: {', '.join(device.compute_tflops)}"
                )
        if target.heads % placement.target_devices:
            raise PlanError(
                f"{path}: {placement.target_devices} devices cannot share "
                f"{target.heads} attention heads"
            )
        shared = "" if placement.draft_devices else placement.device
        found.append(
            Scene(
                preset,
                placement,
                RooflineCost(
                    target, device, placement.target_weights, placement.target_devices, shared
                ),
                RooflineCost(
                    draft, device, placement.draft_weights, placement.draft_devices or 1, shared
                ),
            )
        )
    return found
