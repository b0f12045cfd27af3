"""From completions to a table of all systems, ours and the peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.contest import OURS, Completion, Contender
from bench.group import Group, median


@dataclass(frozen=True)
class Standing:
    """One contender at one temperature.

    tokens_per_s             median over texts, from the request to the last token
    tokens_per_s_quartiles   first and third quartile
    ratio_to_autoregressive  ratio of the medians to our target alone at its best thread count
    time_to_first_token_ms   median
    texts_equal              ours: every text is what the target wrote alone; None: a peer, or
                             another model
    common_prefix            peers: mean share of the tokens before the first that our engine's
                             text has not; information, for their arithmetic and their noise differ
    """

    system: str
    where: str
    temperature: float
    threads: int
    rows: int
    gamma: int | None
    width: int | None
    texts: int
    tokens_per_s: float
    tokens_per_s_quartiles: tuple[float, float]
    ratio_to_autoregressive: float
    time_to_first_token_ms: float
    texts_equal: bool | None
    common_prefix: float | None


@dataclass(frozen=True)
class Comparison:
    """CARD's speed by another system's, each at its best setting.

    ratio    of the medians over texts
    by_text  median over texts of what each of them gained
    """

    temperature: float
    to: str
    ratio: float
    by_text: float


def stand(completions: Sequence[Completion]) -> list[Standing]:
    """Every contender at every temperature, in the order in which they first took a turn."""
    groups = _by_contender(completions)
    alone = {
        temperature: max(
            median(c.measurement.tokens_per_s for c in found)
            for (at, contender), found in groups.items()
            if at == temperature and _place(contender) == ("autoregressive", "in_process")
        )
        for temperature in dict.fromkeys(temperature for temperature, _ in groups)
    }
    return [
        _standing(contender, temperature, found, alone[temperature])
        for (temperature, contender), found in groups.items()
    ]


def best(standings: Sequence[Standing]) -> list[Standing]:
    """The fastest setting of every system, place and temperature."""
    groups: dict[tuple[float, str, str], list[Standing]] = {}
    for standing in standings:
        key = standing.temperature, standing.where, standing.system
        groups.setdefault(key, []).append(standing)
    return [max(same, key=lambda s: s.tokens_per_s) for same in groups.values()]


def narrowed(
    contenders: Sequence[Contender], completions: Sequence[Completion], share: float
) -> list[Contender]:
    """Those that reach this share of their system's best setting at one temperature or more."""
    standings = stand(completions)
    fastest = {(s.temperature, s.where, s.system): s.tokens_per_s for s in best(standings)}
    kept = {
        contender
        for (_, contender), s in zip(_by_contender(completions), standings, strict=True)
        if s.tokens_per_s >= share * fastest[s.temperature, s.where, s.system]
    }
    return [contender for contender in contenders if contender in kept]


def compare(completions: Sequence[Completion]) -> list[Comparison]:
    """CARD in process with every other system at its best."""
    found = []
    for temperature in dict.fromkeys(c.task.temperature for c in completions):
        group = Group([c for c in completions if c.task.temperature == temperature])
        places = dict.fromkeys(map(_place, group.results))
        if ("card", "in_process") not in places:
            continue
        card = group.fastest("card", "in_process")
        for system, where in places:
            if where != "grpc" and system != "card":
                other = group.fastest(system, where)
                ratio = median(group.speeds(card)) / median(group.speeds(other))
                found.append(Comparison(temperature, system, ratio, group.ratio(card, other)))
    return found


def _by_contender(
    completions: Sequence[Completion],
) -> dict[tuple[float, Contender], list[Completion]]:
    groups: dict[tuple[float, Contender], list[Completion]] = {}
    for completion in completions:
        key = completion.task.temperature, completion.contender
        groups.setdefault(key, []).append(completion)
    return groups


def _place(contender: Contender) -> tuple[str, str]:
    return contender.system, contender.where


def _standing(
    contender: Contender, temperature: float, done: Sequence[Completion], alone: float
) -> Standing:
    speeds = [completion.measurement.tokens_per_s for completion in done]
    ours = contender.system in OURS
    prefixes = [c.common_prefix for c in done if c.common_prefix is not None]
    return Standing(
        system=contender.system,
        where=contender.where,
        temperature=temperature,
        threads=contender.threads,
        rows=contender.rows,
        gamma=contender.gamma,
        width=contender.width,
        texts=len(done),
        tokens_per_s=median(speeds),
        tokens_per_s_quartiles=(
            float(np.percentile(speeds, 25)),
            float(np.percentile(speeds, 75)),
        ),
        ratio_to_autoregressive=median(speeds) / alone,
        time_to_first_token_ms=1e3 * median(c.measurement.first_token_s for c in done),
        texts_equal=all(completion.equal for completion in done) if ours else None,
        common_prefix=float(np.mean(prefixes)) if contender.where == "peer" and prefixes else None,
    )
