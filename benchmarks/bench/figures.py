"""From completions to rows: one per system, place and temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.contest import Completion, Contender
from bench.group import Group, median
from card.engines.row_costs import pass_cost_ms
from training.agreement import Ranks, ideal_tokens_per_step

Costs = Mapping[int, Mapping[int, float]]
"""By threads: milliseconds of a target pass by its rows, in ascending order."""


@dataclass(frozen=True)
class Row:
    """The figures of one contender at one temperature. None: it has none, or it cannot be seen.

    tokens_per_s            median over completions, from the request to the last token
    tokens_per_s_quartiles  first and third quartile
    ratio_to_autoregressive      median of the ratios to the target alone at its best thread count
                            in process, each of the same prompt in the same round
    ratio_to_in_process     through gRPC: the same to this system in process
    texts_equal             every text is the one that the target wrote alone
    agreement               share of the target's tokens that are the draft's first choice when it
                            reads along
    ideal_tokens_per_step   if the draft's best chain of `rows` - 1 tokens (draft-then-verify: γ,
                            PEARL: γ - 1) were always ready
    tokens_per_step         committed per target pass; `mean_accepted` of them came from the cache
    hit_rate                share of the queries that gave candidates
    empty_query_share       share of all target passes that no candidate joined though asked for
    target_wait_share       of the time from request to last token; so is `draft_idle_share`
    draft_ms_per_pass       of the draft, while the text was written
    ms_per_step             behind the first token; query, forward and walk are parts of it
    rows_adapt              each pass took as many rows as were worth it, `rows` at the beginning
    share_of_ideal          CARD: ratio_to_autoregressive ÷ (ideal_tokens_per_step × milliseconds of
                            an autoregressive pass ÷ milliseconds of a pass of `rows`)
    decoding_ratio, decoding_share_of_ideal
                            the same two behind the first token: the prompt's prefill, which no
                            speculation shortens, is left out. In process alone: a server's first
                            delta may hold more than one token
    """

    system: str
    where: str
    temperature: float
    threads: int
    rows: int
    gamma: int | None
    width: int | None
    rows_adapt: bool
    completions: int
    tokens_per_s: float
    tokens_per_s_quartiles: tuple[float, float]
    ratio_to_autoregressive: float
    ratio_to_in_process: float | None
    texts_equal: bool
    agreement: float | None
    ideal_tokens_per_step: float | None
    tokens_per_step: float
    mean_accepted: float
    hit_rate: float | None
    empty_query_share: float | None
    target_wait_share: float | None
    draft_idle_share: float | None
    draft_ms_per_pass: float | None
    time_to_first_token_ms: float
    ms_per_step: float | None
    query_ms: float | None
    forward_ms: float | None
    walk_ms: float | None
    share_of_ideal: float | None
    decoding_ratio: float | None
    decoding_share_of_ideal: float | None


@dataclass(frozen=True)
class Figures:
    """`rows`: the best setting of every system; `swept`: all settings."""

    rows: list[Row]
    swept: list[Row]


def summarise(
    completions: Sequence[Completion], ranks: Mapping[float, Sequence[Ranks]], costs: Costs
) -> Figures:
    """The figures of a whole run; `ranks` of the target's texts by temperature."""
    rows: list[Row] = []
    swept: list[Row] = []
    for temperature, found in ranks.items():
        group = Group([c for c in completions if c.task.temperature == temperature])
        every = [_row(group, contender, temperature, found, costs) for contender in group.results]
        swept += every
        rows += [max(same, key=lambda row: row.tokens_per_s) for same in _by_system(every)]
    return Figures(rows, swept)


def median_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Milliseconds of a pass by rows, from several measurements of them."""
    return {rows: median(curve[rows] for curve in curves) for rows in sorted(curves[0])}


def _row(
    group: Group,
    contender: Contender,
    temperature: float,
    ranks: Sequence[Ranks],
    costs: Costs,
) -> Row:
    done = list(group.results[contender].values())
    found = [completion.measurement for completion in done]
    alone = group.fastest("autoregressive", "in_process")
    speculates = contender.system != "autoregressive"
    speeds = group.speeds(contender)
    seconds, steps = sum(m.seconds for m in found), sum(m.steps for m in found)
    queries, hits = sum(m.queries for m in found), sum(m.hits for m in found)
    accepted = sum(m.accepted for m in found)
    ratio = group.ratio(contender, alone)
    # γ passes of the draft are γ candidates, whatever the target's pass has room for; a chunk of
    # PEARL holds one less, because its first token is verified before.
    rows = contender.rows
    if contender.gamma is not None:
        rows = contender.gamma + (contender.system != "pearl")
    ideal = ideal_tokens_per_step(ranks, rows) if speculates else None
    bound = None
    if contender.system == "card" and ideal is not None:
        pass_ms = pass_cost_ms(costs[contender.threads], contender.rows)
        bound = ideal * pass_cost_ms(costs[alone.threads], 1) / pass_ms
    decoding_ratio = None
    if contender.where == "in_process":
        decoding_ratio = group.decoding_ratio(contender, alone)
    passes = sum(m.draft.passes for m in found)
    waits = [m.target_wait_s for m in found if m.target_wait_s is not None]
    ms_per_step, query_ms, forward_ms, walk_ms = _milliseconds(done)
    return Row(
        system=contender.system,
        where=contender.where,
        temperature=temperature,
        threads=contender.threads,
        rows=contender.rows,
        gamma=contender.gamma,
        width=contender.width,
        rows_adapt=contender.rows_adapt,
        completions=len(found),
        tokens_per_s=median(speeds),
        tokens_per_s_quartiles=(
            float(np.percentile(speeds, 25)),
            float(np.percentile(speeds, 75)),
        ),
        ratio_to_autoregressive=ratio,
        ratio_to_in_process=(
            group.ratio(contender, group.fastest(contender.system, "in_process"))
            if contender.where == "grpc"
            else None
        ),
        texts_equal=all(completion.equal for completion in done),
        agreement=float((np.concatenate(ranks) == 0).mean()) if speculates else None,
        ideal_tokens_per_step=ideal,
        tokens_per_step=sum(m.generated for m in found) / steps,
        mean_accepted=accepted / steps,
        hit_rate=hits / queries if queries else None,
        empty_query_share=(queries - hits) / steps if speculates else None,
        target_wait_share=sum(waits) / seconds if speculates and waits else None,
        draft_idle_share=(
            sum(m.draft.idle_ns for m in found) / 1e9 / seconds if speculates else None
        ),
        draft_ms_per_pass=(
            sum(m.draft.busy_ns for m in found) / 1e6 / passes if speculates and passes else None
        ),
        time_to_first_token_ms=median(1e3 * m.first_token_s for m in found),
        ms_per_step=ms_per_step,
        query_ms=query_ms,
        forward_ms=forward_ms,
        walk_ms=walk_ms,
        share_of_ideal=ratio / bound if bound else None,
        decoding_ratio=decoding_ratio,
        decoding_share_of_ideal=decoding_ratio / bound if bound and decoding_ratio else None,
    )


def _milliseconds(
    done: Sequence[Completion],
) -> tuple[float, float, float, float] | tuple[None, None, None, None]:
    """Mean of a step behind the first token, and of its query, forward and walk."""
    found = [c.measurement for c in done if c.measurement.phases is not None]
    phases = [m.phases for m in found if m.phases is not None]
    steps = sum(p.steps for p in phases)
    if not steps:
        return None, None, None, None
    return (
        1e3 * sum(m.seconds - m.first_token_s for m in found) / steps,
        sum(p.query for p in phases) / steps,
        sum(p.forward for p in phases) / steps,
        sum(p.walk for p in phases) / steps,
    )


def _by_system(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.where, row.system), []).append(row)
    return list(groups.values())
