"""How a draft foresees a text: what was measured of a pair, and texts drawn for other pairs.

A `Foresight` says for every token of a text at which rank the draft has it, how sure the draft
is, and whether an n-gram proposal would have been right. Agreement comes in stretches:
what is easy stays easy for a while. A measured foresight is replayed as it came; one for a pair
that is not here is drawn with the stretches of a measured one, see `Likeness`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from model_files.opening import is_gguf, model_at
from planning.errors import PlanError
from planning.reading import read_yaml

BEST = 8
"""Ranks that are told apart; the draft keeps as many children of a node."""

CONFIDENCE = (0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 0.975, 0.99)
"""Where a level of the draft's confidence, the probability of its best child, gives way to the
next; finer where most tokens lie."""

LEVELS = len(CONFIDENCE) + 1

ABSENT, RIGHT, WRONG = "-", "1", "0"
MISSED = "."


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextRecord(_Record):
    """One text as the draft read it, one character for every token.

    ranks       0 to 7: the draft's rank of the target's token; ".": not among those it keeps
    confidence  0 to 9: level of the probability that the draft gives its best child
    proposals   whether what followed the same last tokens before came again: 1, 0, -: no proposal
    chances     0 to 9: tenths of the chance that the proposer gave it; None: its hit rate, as in
                older profiles, whose proposer knew no table of other texts
    hit_rate    of the n-gram proposer at the text's begin
    parcels     whether the choice of a smaller draft came: 1, 0; None: not measured
    likeliest   whether the draft's likeliest token came, without the target's noise: 1, 0; None:
                not measured
    """

    prompt_tokens: Annotated[int, Field(ge=1)]
    hit_rate: Annotated[float, Field(ge=0, le=1)]
    ranks: Annotated[str, Field(pattern=r"^[0-7.]+$")]
    confidence: Annotated[str, Field(pattern=r"^[0-9]+$")]
    proposals: Annotated[str, Field(pattern=r"^[01-]+$")]
    chances: Annotated[str, Field(pattern=r"^[0-9]+$")] | None = None
    parcels: Annotated[str, Field(pattern=r"^[01]+$")] | None = None
    likeliest: Annotated[str, Field(pattern=r"^[01]+$")] | None = None

    @model_validator(mode="after")
    def _equally_long(self) -> TextRecord:
        if len({len(getattr(self, name)) for name in self._along}) > 1:
            raise ValueError(f"{', '.join(self._along)} must be equally long")
        return self

    @property
    def _along(self) -> list[str]:
        """Fields with a character for every token."""
        every = ("ranks", "confidence", "proposals", "chances", "parcels", "likeliest")
        return [name for name in every if getattr(self, name) is not None]

    def chance(self, place: int) -> float | None:
        """That the proposal there comes true, as the proposer said; None: not told."""
        return None if self.chances is None else (int(self.chances[place]) + 0.5) / 10

    def begun(self, tokens: int) -> TextRecord:
        """The first `tokens` of it."""
        return self.model_copy(update={name: getattr(self, name)[:tokens] for name in self._along})


class Foresight(_Record):
    """What a draft foresees of a target's texts at one temperature.

    children  [levels][ranks] mean probability of the draft's children by its confidence; those
              not worth a node are left out
    """

    temperature: Annotated[float, Field(ge=0)]
    children: Annotated[list[list[float]], Field(min_length=LEVELS, max_length=LEVELS)]
    texts: Annotated[list[TextRecord], Field(min_length=1)]

    @property
    def agreement(self) -> float:
        """Share of the tokens that are the draft's first choice."""
        return self.within(1)

    def within(self, best: int) -> float:
        """Share of the tokens among the draft's `best` choices."""
        every = "".join(text.ranks for text in self.texts)
        return sum(rank != MISSED and int(rank) < best for rank in every) / len(every)

    @property
    def persistence(self) -> float:
        """Correlation of agreement at neighbouring tokens; 0 if agreement were independent."""
        pairs = [
            (first == "0", second == "0")
            for text in self.texts
            for first, second in zip(text.ranks, text.ranks[1:], strict=False)
        ]
        first, second = np.array(pairs, float).T
        if not first.std() or not second.std():
            return 0.0
        return float(np.corrcoef(first, second)[0, 1])

    @property
    def mean_run(self) -> float:
        """Mean length of an unbroken stretch of agreement."""
        runs = [run for text in self.texts for run in "".join(_agrees(text)).split("x") if run]
        return float(np.mean([len(run) for run in runs])) if runs else 0.0

    @property
    def right_proposals(self) -> float:
        """Share of the tokens that an n-gram proposal would have foreseen."""
        every = "".join(text.proposals for text in self.texts)
        return every.count(RIGHT) / len(every)

    def of_a_device(self) -> Foresight:
        """The foresight of a device that runs the draft: it sends its likeliest token, and no
        chance of it. Raises `PlanError` if it was not measured without the target's noise."""
        texts = []
        for text in self.texts:
            came, right = (text.likeliest, RIGHT) if self.temperature else (text.ranks, "0")
            if came is None:
                raise PlanError(
                    "the profile tells nothing of a draft on a device: measure it again"
                )
            ranks = "".join("0" if found == right else MISSED for found in came)
            texts.append(text.model_copy(update={"ranks": ranks}))
        return self.model_copy(update={"texts": texts, "children": [[1.0]] * LEVELS})

    def limited(self, numbers: Sequence[int], tokens: int) -> Foresight:
        """The first `tokens` of the texts of these prompts, in this order. Raises `PlanError` if
        one is missing or shorter."""
        last = max(numbers)
        if last >= len(self.texts):
            raise PlanError(f"the profile holds {len(self.texts)} texts, number {last} is needed")
        chosen = [self.texts[number] for number in numbers]
        shortest = min(len(text.ranks) for text in chosen)
        if shortest < tokens:
            raise PlanError(f"the profile's texts have {shortest} tokens, {tokens} are needed")
        return self.model_copy(update={"texts": [text.begun(tokens) for text in chosen]})


def _agrees(text: TextRecord) -> list[str]:
    return ["=" if rank == "0" else "x" for rank in text.ranks]


class Profile(_Record):
    """A pair's foresight on a file of prompts, as `measure` wrote it.

    target, draft  SHA-256 of the weights that were measured
    dtype          what the target's matrices were stored in, for texts differ by it; None: not told
    """

    command: str
    date: str
    prompts: str
    target: str
    draft: str
    dtype: str | None = None
    foresights: Annotated[list[Foresight], Field(min_length=1)]

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Raises `PlanError` saying what is wrong with the file."""
        return read_yaml(path, cls)

    def at(self, temperature: float) -> Foresight | None:
        """The foresight at this temperature, if it was measured."""
        found = [f for f in self.foresights if abs(f.temperature - temperature) < 1e-6]
        return found[0] if found else None


def weights_hash(path: Path) -> str:
    """SHA-256 over a model's GGUF file, or its safetensors files in order of their names."""
    model = model_at(path)
    digest = hashlib.sha256()
    for file in [model] if is_gguf(model) else sorted(model.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Likeness:
    """Draws texts of a pair that is not here, partly in the likeness of a measured one.

    Assumed: the draft is calibrated. Its confidence in a token has a beta distribution whose mean
    is the agreement, and it is right as often as it is confident. Taken from the measured pair:
    the probabilities of the other children at every level of confidence, hence the ranks where the
    draft is wrong, and `drift`, the correlation of neighbouring confidences, chosen such that
    agreement is as persistent as measured. N-gram proposals are left out: how often they
    help is known for no pair but the measured one.
    """

    measured: Foresight
    drift: float

    @classmethod
    def of(cls, measured: Foresight) -> Likeness:
        """Find the drift that gives the measured persistence, by bisection."""
        low, high = 0.0, 0.999
        for _ in range(10):
            middle = (low + high) / 2
            drawn = cls(measured, middle).draw(measured.agreement, 20, 1000)
            low, high = (
                (middle, high) if drawn.persistence < measured.persistence else (low, middle)
            )
        return cls(measured, (low + high) / 2)

    def draw(self, agreement: float, texts: int, tokens: int, seed: int = 0) -> Foresight:
        """`texts` of `tokens` each that together agree as often as asked for."""
        generator = np.random.default_rng(seed)
        confidence = _confidence(agreement, self.drift, (texts, tokens), generator)
        agrees = _systematic(confidence, generator)
        levels = np.digitize(confidence, CONFIDENCE)
        beside = [self._ranks_beside(level) for level in range(LEVELS)]
        records = []
        for text in range(texts):
            ranks = [
                "0" if agrees[text, place] else generator.choice(_BESIDE, p=beside[level])
                for place, level in enumerate(levels[text].tolist())
            ]
            records.append(
                TextRecord(
                    prompt_tokens=1,
                    hit_rate=0.0,
                    ranks="".join(ranks),
                    confidence="".join(map(str, levels[text].tolist())),
                    proposals=ABSENT * tokens,
                )
            )
        return self.measured.model_copy(update={"texts": records})

    def _ranks_beside(self, level: int) -> NDArray[np.float64]:
        """Probabilities of ranks 1 to 7 and of none, where the first choice is wrong."""
        children = np.array(self.measured.children[level])
        missed = max(1.0 - children.sum(), 1e-4)
        found = np.array([*children[1:], missed])
        result: NDArray[np.float64] = found / found.sum()
        return result


_CONCENTRATION = 2.0
"""Of the beta distribution of confidence: most tokens are nearly sure, a few nearly unknown."""

_BESIDE = [*map(str, range(1, BEST)), MISSED]


def _confidence(
    agreement: float, drift: float, shape: tuple[int, int], generator: np.random.Generator
) -> NDArray[np.float64]:
    """[texts, tokens] beta-distributed, neighbours correlated (a Gaussian copula)."""
    steps = generator.standard_normal(shape)
    moving = steps.copy()
    for place in range(1, shape[1]):
        moving[:, place] = drift * moving[:, place - 1] + (1 - drift**2) ** 0.5 * steps[:, place]
    size = (moving.size,)
    values = generator.beta(_CONCENTRATION * agreement, _CONCENTRATION * (1 - agreement), size)
    found = np.empty(moving.size)
    found[np.argsort(moving, axis=None)] = np.sort(values)
    return found.reshape(shape)


def _systematic(chance: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.bool_]:
    """Whether each happens; all together as often as the chances say, up to one."""
    order = generator.permutation(chance.size)
    before = np.floor(np.concatenate([[0.0], chance.ravel()[order].cumsum()]) + generator.random())
    happens = np.empty(chance.size, bool)
    happens[order] = np.diff(before) > 0
    return happens.reshape(chance.shape)


def children_table(
    levels: Sequence[int], probabilities: Sequence[Sequence[float]]
) -> list[list[float]]:
    """[levels][ranks] mean probabilities of children; a level never seen takes the nearest one.

    levels         [rows] confidence of every row
    probabilities  [rows][ranks] of its children, best first
    """
    seen: dict[int, list[float]] = {}
    for level in range(LEVELS):
        rows = [p for at, p in zip(levels, probabilities, strict=True) if at == level]
        if rows:
            padded = np.zeros((len(rows), BEST))
            for row, found in enumerate(rows):
                padded[row, : len(found)] = found
            seen[level] = [round(float(p), 4) for p in padded.mean(axis=0)]
    return [seen[min(seen, key=lambda at: abs(at - level))] for level in range(LEVELS)]
