"""What a head that reads the target's hidden states finds there, what it takes, and how many tokens
of its blocks the target accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.lag_blocks import Blocks, Written, states_of
from bench.prompts import Prompt
from card.engines.architecture import Architecture
from card.engines.interface import EngineError
from card.engines.options import EngineOptions
from card.loading import load_engine
from card.sampling import SamplingParameters
from card.settings import CacheSettings, Settings
from card.speculation.drafters.heads.formats import HeadConfig, head_of
from card.speculation.drafters.heads.loading import load_head
from card.speculation.drafters.heads.reading import read_head
from importing.checks import Finding, Model, PairError, Verdict, check_target
from model_files import ModelFilesError, model_files_of
from writing import write_alone

LATE = 4
"""Tokens without states, for the second figure of `measure_head`."""
_CHAIN = 6
"""Tokens of a block of a head that makes one token a pass."""
_PLACES = 8


def head_at(path: Path) -> HeadConfig | None:
    """The configuration of a head; None: the draft is another one. Raises `PairError`."""
    if not path.is_dir():
        return None
    try:
        return head_of(model_files_of(path).config())
    except ModelFilesError:
        return None  # reported as for any other draft
    except ValueError as error:
        raise PairError(f"{path}/config.json: {error}") from error


def check_head(head: HeadConfig, path: Path, target: Model) -> list[Finding]:
    """Everything that can be said before the target is loaded; the head is small, and is loaded."""
    findings = check_target(target)
    try:
        _, own, a = read_head(path, target.path)
    except EngineError as error:
        return [Finding("head", Verdict.UNMET, str(error)), *findings]
    taps, options = _taps(head, a), EngineOptions(context=64, sessions=1, paths=0, pending=64)
    try:
        load_head(path, target.path, options)
    except EngineError as error:
        return [Finding("head", Verdict.UNMET, str(error)), taps, *findings]
    return [_found(head, own), taps, _takes(head, path, a), *findings]


def _found(head: HeadConfig, a: Architecture) -> Finding:
    makes = f"blocks of {head.block} tokens" if head.block > 1 else "one token a pass"
    detail = f"{head.kind}: {a.layers} layer{'s' * (a.layers > 1)} of {a.hidden} numbers; {makes}"
    return Finding("head", Verdict.MET, detail)


def _taps(head: HeadConfig, target: Architecture) -> Finding:
    need, last = "hidden states", target.layers
    taps = head.taps(last)
    named = ", ".join(map(str, taps))
    if wrong := [tap for tap in taps if not -last - 1 <= tap <= last]:
        detail = (
            f"the head reads {named}; the target of {last} layers has 0 to {last}, not "
            f"{', '.join(map(str, wrong))}: set draft.taps, or take a head for this target"
        )
        return Finding(need, Verdict.UNMET, detail)
    detail = f"{named} of 0 (embeddings) to {last} (final norm), as in transformers' hidden_states"
    return Finding(need, Verdict.MET, detail)


def _takes(head: HeadConfig, path: Path, target: Architecture) -> Finding:
    per_token = 2 * len(head.taps(target.layers)) * target.hidden
    of_slot = per_token * CacheSettings().state_tokens
    weights = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    detail = (
        f"{per_token / 1e3:.1f} kB of states a token, {of_slot / 1e6:.1f} MB a slot; "
        f"{weights / 1e6:.0f} MB of weights"
    )
    return Finding("cost", Verdict.MET, detail)


@dataclass(frozen=True)
class MeasuredHead:
    """
    block      tokens of a block
    accepted   tokens of a block that the target accepts if all states come in time
    late       the same if the newest `LATE` tokens have none
    *_costs_ms  milliseconds of a pass by its rows, each model alone on the machine
    """

    block: int
    accepted: float
    late: float
    target_costs_ms: dict[int, float]
    draft_costs_ms: dict[int, float]


def measure_head(
    settings: Settings, prompts: Sequence[Prompt], max_tokens: int, on_text: Callable[[], None]
) -> MeasuredHead:
    """Let the target write `max_tokens` greedily after each prompt, and the head make blocks
    there. Raises `EngineError`."""
    alone = settings.model_copy(update={"cache": CacheSettings(slots=1)})
    target, draft = load_engine(alone, "target"), load_engine(alone, "draft")
    named = settings.speculation.block
    block = min(named, max_tokens - 1) if isinstance(named, int) and named > 1 else _CHAIN
    blocks = Blocks(draft, alone, block)
    accepted: dict[int, list[float]] = {0: [], LATE: []}
    for prompt in prompts:
        text = write_alone(target, prompt.tokens, SamplingParameters(), max_tokens)
        tokens = [*prompt.tokens, *text]
        written = Written(tokens, len(prompt.tokens), states_of(target, tokens))
        for lag, found in accepted.items():
            found.append(blocks.accepted(written, _PLACES, lag))
        on_text()
    return MeasuredHead(
        block, fmean(accepted[0]), fmean(accepted[LATE]), target.row_costs_ms, draft.row_costs_ms
    )
