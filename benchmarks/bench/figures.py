"""From completions to rows: one per system, place and temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.contest import Completion, Contender
from card.speculation.pacing import PACINGS, PLAIN
from training.ranks import Ranks, ideal_tokens_per_step


@dataclass(frozen=True)
class Row:
    """The figures of one contender at one temperature. None: it has none, or it cannot be seen.

    tokens_per_s           median over texts, from the request to the last token; first and third
                           quartile
    texts_equal            every text is the one that the target wrote alone; None: it may differ
    common_prefix          peers: mean share of a text's tokens before the first that our text has
                           not; information, for their arithmetic and their noise differ
    agreement              share of the target's tokens that are the draft's first choice when it
                           reads along
    ideal_tokens_per_step  if the draft's best chain of `rows` - 1 tokens (draft-then-verify: γ,
                           PEARL: γ - 1) were always ready
    tokens_per_step        committed per target pass; `mean_accepted` of them came from the cache
    share_of_ideal         tokens_per_step / ideal_tokens_per_step
    hit_rate               share of the queries that gave candidates
    empty_query_share      share of all target passes that no candidate joined though asked for
    target_wait_share      of the time from request to last token; so is `draft_idle_share`
    draft_ms_per_pass      of the draft, while the text was written; `draft_ms_per_token` committed
    rollback_share         of the layers that the draft made, those that commits threw away
    saved_rows_per_pass    of the draft, because nodes shared what is below them
    foreign_share          of the tokens, those that the target would not have chosen
    ms_per_step            behind the first token; query, forward and verify are parts of it
    rows_adapt             each pass took as many rows as were worth it, `rows` at the beginning
    lossless               its rule promises the target's own text, and every text was; peers: None
    """

    system: str
    where: str
    temperature: float
    threads: int
    rows: int
    gamma: int | None
    width: int | None
    rows_adapt: bool
    texts: int
    tokens_per_s: float
    tokens_per_s_quartiles: tuple[float, float]
    time_to_first_token_ms: float
    texts_equal: bool | None
    common_prefix: float | None
    lossless: bool | None = None
    agreement: float | None = None
    ideal_tokens_per_step: float | None = None
    tokens_per_step: float = 1.0
    share_of_ideal: float | None = None
    mean_accepted: float = 0.0
    hit_rate: float | None = None
    empty_query_share: float | None = None
    target_wait_share: float | None = None
    draft_idle_share: float | None = None
    draft_ms_per_pass: float | None = None
    draft_ms_per_token: float | None = None
    rollback_share: float | None = None
    saved_rows_per_pass: float | None = None
    foreign_share: float | None = None
    ms_per_step: float | None = None
    query_ms: float | None = None
    forward_ms: float | None = None
    verify_ms: float | None = None

    @property
    def speculates(self) -> bool:
        return self.hit_rate is not None


def summarise(
    completions: Sequence[Completion], ranks: Mapping[float, Sequence[Ranks]]
) -> list[Row]:
    """`ranks` of the target's texts by temperature; without them no ideal is told."""
    groups: dict[tuple[float, Contender], list[Completion]] = {}
    for completion in completions:
        key = completion.task.temperature, completion.contender
        groups.setdefault(key, []).append(completion)
    return [
        _row(contender, temperature, done, ranks.get(temperature, ()))
        for (temperature, contender), done in groups.items()
    ]


def median_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Milliseconds of a pass by rows, from several measurements of them."""
    return {rows: median(curve[rows] for curve in curves) for rows in sorted(curves[0])}


def _row(
    contender: Contender, temperature: float, done: Sequence[Completion], ranks: Sequence[Ranks]
) -> Row:
    speeds = [completion.measurement.tokens_per_s for completion in done]
    prefixes = [c.common_prefix for c in done if c.common_prefix is not None]
    low, high = np.percentile(speeds, (25, 75)).tolist()
    ours, equal = contender.is_ours, all(completion.equal for completion in done)
    foreseen: Sequence[Ranks] = ranks if contender.system != "card_unrelated_draft" else ()
    return Row(
        system=contender.system,
        where=contender.where,
        temperature=temperature,
        threads=contender.threads,
        rows=contender.rows,
        gamma=contender.gamma,
        width=contender.width,
        rows_adapt=contender.rows_adapt,
        texts=len(done),
        tokens_per_s=median(speeds),
        tokens_per_s_quartiles=(low, high),
        time_to_first_token_ms=median(1e3 * c.measurement.first_token_s for c in done),
        texts_equal=equal if contender.lossless and ours else None,
        lossless=contender.lossless and equal if ours else None,
        common_prefix=float(np.mean(prefixes)) if contender.where == "peer" and prefixes else None,
        **(_milliseconds(done) if ours else {}),
        **(_speculation(contender, done, foreseen) if ours and contender.system != PLAIN else {}),
    )


def _speculation(
    contender: Contender, done: Sequence[Completion], ranks: Sequence[Ranks]
) -> dict[str, Any]:
    """What candidates brought, over all texts together."""
    found = [completion.measurement for completion in done]
    seconds, steps = sum(m.seconds for m in found), sum(m.steps for m in found)
    queries, hits = sum(m.queries for m in found), sum(m.hits for m in found)
    passes = sum(m.draft.passes for m in found)
    draft_ms = sum(m.draft.busy_ns for m in found) / 1e6
    layers = sum(m.layers for m in found)
    waits = [m.target_wait_s for m in found if m.target_wait_s is not None]
    tokens_per_step = sum(m.generated for m in found) / steps
    rows = contender.rows
    if contender.gamma is not None:  # whatever the target's pass has room for
        pacing = PACINGS.get(contender.system)
        rows = 1 + (contender.gamma if pacing is None else pacing.chunk(contender.gamma))
    ideal = ideal_tokens_per_step(ranks, rows) if ranks else None
    return {
        "agreement": float((np.concatenate(ranks) == 0).mean()) if ranks else None,
        "ideal_tokens_per_step": ideal,
        "tokens_per_step": tokens_per_step,
        "share_of_ideal": tokens_per_step / ideal if ideal else None,
        "mean_accepted": sum(m.accepted for m in found) / steps,
        "hit_rate": hits / max(1, queries),
        "empty_query_share": (queries - hits) / steps,
        "target_wait_share": sum(waits) / seconds if waits else None,
        "draft_idle_share": sum(m.draft.idle_ns for m in found) / 1e9 / seconds,
        "draft_ms_per_pass": draft_ms / passes if passes else None,
        "draft_ms_per_token": draft_ms / sum(m.generated for m in found),
        "rollback_share": sum(m.lost_layers for m in found) / layers if layers else None,
        "saved_rows_per_pass": sum(m.saved_rows for m in found) / passes if passes else None,
        "foreign_share": sum(m.foreign for m in found) / sum(m.generated for m in found),
    }


def _milliseconds(done: Sequence[Completion]) -> dict[str, Any]:
    """Mean of a step behind the first token, and of its query, forward and verify."""
    found = [c.measurement for c in done if c.measurement.phases is not None]
    phases = [m.phases for m in found if m.phases is not None]
    steps = sum(p.steps for p in phases)
    if not steps:
        return {}
    return {
        "ms_per_step": 1e3 * sum(m.seconds - m.first_token_s for m in found) / steps,
        "query_ms": sum(p.query for p in phases) / steps,
        "forward_ms": sum(p.forward for p in phases) / steps,
        "verify_ms": sum(p.verify for p in phases) / steps,
    }
