"""What a request may say: the one table of input tensors.

The fields of `GenerateRequest` *are* the table: a field is a tensor, its default is what holds
when the tensor is absent, and its metadata says how it travels and which values are allowed.
Parsing, refusals and the test of the `config.pbtxt` files derive from it. Names and dtypes are
those of TensorRT-LLM's Triton ensemble; what is ours is named in `docs/wire.md`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.cache import NO_SALT, SALT_BYTES
from card.constraints import GUIDE_TYPES, Guide
from card.serving.refusal import Refusal, invalid, missing
from card.settings import LimitSettings
from card.speculation.acceptance import RULES
from card.speculation.drafters import DRAFTERS
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card.speculation.sources import WITHOUT_DRAFT

DECODINGS = tuple(PACINGS)
DATA_TYPES = {"BYTES": "TYPE_STRING", "BOOL": "TYPE_BOOL", "INT32": "TYPE_INT32",
              "INT64": "TYPE_INT64", "UINT64": "TYPE_UINT64", "FP32": "TYPE_FP32"}  # fmt: skip
"""Names in `config.pbtxt` of the dtypes on the wire."""

_SECRET = re.compile("[0-9a-f]{32}")

VOCABULARY = "vocabulary"
"""In place of a limit: a list of one element for each token."""

PARAMETERS = ("id", "priority", "timeout")
"""Request parameters that are understood; Triton's own begin with `triton_`."""


@dataclass(frozen=True)
class Bounds:
    """What the allowed values depend on: the settings, and how many token ids there are."""

    limits: LimitSettings
    vocabulary: int


Check = Callable[[Any, Bounds], str | None]
"""What is allowed if a value is not, else None."""


@dataclass(frozen=True)
class Tensor:
    """How one input travels.

    most  of a list, the limit of its elements among the settings' `limits`, or `vocabulary`; None:
          one value
    dims  shape without the leading batch dimension
    """

    name: str
    dtype: str
    most: str | None
    check: Check | None
    doc: str
    dims: list[int]

    @property
    def many(self) -> bool:
        return self.most is not None


# --- which values are allowed ------------------------------------------------------------------


def _bounded_text(value: str, bounds: Bounds) -> str | None:
    most = bounds.limits.prompt_bytes
    if value and len(value.encode()) <= most:
        return None
    return f"text of at least one character and at most {most} bytes (limits.prompt_bytes)"


def _number_of_likeliest(value: int, bounds: Bounds) -> str | None:
    most = bounds.limits.top_log_probs
    return None if 0 <= value <= most else f"between 0 and {most} (limits.top_log_probs)"


def _token_ids_or_none(ids: tuple[int, ...], bounds: Bounds) -> str | None:
    if all(0 <= token < bounds.vocabulary for token in ids):
        return None
    return f"token ids, each 0 to {bounds.vocabulary - 1}"


def _biases(values: tuple[float, ...], _: Bounds) -> str | None:
    # NaN is none of them.
    return None if all(-100.0 <= value <= 100.0 for value in values) else "between -100.0 and 100.0"


def only_false(value: bool, _: Bounds) -> str | None:
    """The check of what is not offered."""
    return "false: it is not offered" if value else None


def _only_one(value: int, _: Bounds) -> str | None:
    return None if value == 1 else "1, the only number served"


def _between(low: float, high: float | Callable[[Bounds], float]) -> Check:
    """Finite numbers from `low` to `high`; NaN is none."""

    def check(value: float, bounds: Bounds) -> str | None:
        most = high(bounds) if callable(high) else high
        if low <= value <= most and math.isfinite(value):
            return None
        return f"between {low} and {most}" if math.isfinite(most) else f"a number, {low} or more"

    return check


def _token_or_none(value: int, bounds: Bounds) -> str | None:
    known = -1 <= value < bounds.vocabulary
    return None if known else f"a token id, 0 to {bounds.vocabulary - 1}, or -1 for none"


def _short_words(words: tuple[str, ...], bounds: Bounds) -> str | None:
    most = bounds.limits.word_bytes
    if all(len(word.encode()) <= most for word in words):
        return None
    return f"words of at most {most} bytes each (limits.word_bytes)"


def _one_of(keys: Collection[str]) -> Check:
    def check(value: str, _: Bounds) -> str | None:
        return None if value in keys else f"one of {', '.join(keys)}"

    return check


def _short_name(value: str, bounds: Bounds) -> str | None:
    most = bounds.limits.word_bytes
    return None if len(value.encode()) <= most else f"at most {most} bytes (limits.word_bytes)"


def _secret(value: str, _: Bounds) -> str | None:
    return None if _SECRET.fullmatch(value) else "32 hexadecimal digits, drawn at random"


def _known_guide_type(value: str, _: Bounds) -> str | None:
    return None if value in ("", *GUIDE_TYPES) else f"one of {', '.join(GUIDE_TYPES)}"


def _bounded_guide(value: str, bounds: Bounds) -> str | None:
    most = bounds.limits.guide_bytes
    return None if len(value.encode()) <= most else f"at most {most} bytes (limits.guide_bytes)"


def _token_ids(ids: tuple[int, ...], bounds: Bounds) -> str | None:
    if ids and min(ids) >= 0 and max(ids) < bounds.vocabulary:
        return None
    return f"one or more token ids, each 0 to {bounds.vocabulary - 1}"


def tensor(
    dtype: str,
    doc: str,
    check: Check | None = None,
    *,
    default: Any = None,
    most: str | None = None,
    dims: Sequence[int] | None = None,
) -> Any:
    """A field of the table; see `Tensor`."""
    shape = [-1 if most else 1] if dims is None else list(dims)
    metadata = {"dtype": dtype, "doc": doc, "check": check, "most": most, "dims": shape}
    return field(default=default, metadata=metadata)


# --- the table ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One request as `ensemble`, `preprocessing` and `card` receive it.

    Clients send the prompt as text or as tokens. `card` always gets the tokens, and the text too
    for those who want it back.
    """

    text_input: str | None = tensor("BYTES", "The prompt.", _bounded_text)
    input_ids: tuple[int, ...] = tensor(
        "INT32",
        "The prompt's tokens, in place of text_input.",
        _token_ids,
        default=(),
        most="prompt_tokens",
    )
    max_tokens: int | None = tensor(
        "INT32",
        "How many new tokens at most; limits.default_max_tokens if absent.",
        _between(1, lambda bounds: bounds.limits.max_tokens),
    )
    stream: bool = tensor("BOOL", "Send the text as it is generated.", default=False)
    temperature: float = tensor(
        "FP32", "Sampling temperature; 0 is greedy.", _between(0, math.inf), default=0.0
    )
    top_k: int = tensor(
        "INT32", "Sample from the k likeliest tokens; 0 is off.", _between(0, math.inf), default=0
    )
    top_p: float = tensor(
        "FP32",
        "Sample from the likeliest tokens of mass p; 0 and 1 are off.",
        _between(0, 1),
        default=0.0,
    )
    min_p: float = tensor(
        "FP32",
        "Sample from tokens at least this fraction as likely as the likeliest; 0 is off.",
        _between(0, 1),
        default=0.0,
    )
    repetition_penalty: float = tensor(
        "FP32",
        "Divides positive scores of tokens seen; 1 is off.",
        _between(0.01, 100.0),
        default=1.0,
    )
    presence_penalty: float = tensor(
        "FP32", "Subtracted once from scores of tokens seen.", _between(-100.0, 100.0), default=0.0
    )
    frequency_penalty: float = tensor(
        "FP32", "Subtracted from scores for every occurrence.", _between(-100.0, 100.0), default=0.0
    )
    min_tokens: int = tensor(
        "INT32",
        "Nothing of end_id and stop_token_ids is chosen before so many new tokens.",
        _between(0, lambda bounds: bounds.limits.max_tokens),
        default=0,
    )
    seed: int | None = tensor("UINT64", "The same seed gives the same text; absent: a fresh one.")
    stop_words: tuple[str, ...] = tensor(
        "BYTES",
        "The text ends before the first of these; a special token ends it as end_id does.",
        _short_words,
        default=(),
        most="stop_words",
    )
    bad_words: tuple[str, ...] = tensor(
        "BYTES",
        "Token sequences of these are never completed.",
        _short_words,
        default=(),
        most="bad_words",
    )
    end_id: int | None = tensor(
        "INT32", "The token that ends the text; -1: none; absent: the model's.", _token_or_none
    )
    stop_token_ids: tuple[int, ...] = tensor(
        "INT32",
        "Further tokens that end the text.",
        _token_ids_or_none,
        default=(),
        most="stop_token_ids",
    )
    logit_bias_ids: tuple[int, ...] = tensor(
        "INT32",
        "Tokens whose logits are changed by logit_bias_values.",
        _token_ids_or_none,
        default=(),
        most="logit_bias",
    )
    logit_bias_values: tuple[float, ...] = tensor(
        "FP32",
        "Added to the logits of logit_bias_ids, one for each.",
        _biases,
        default=(),
        most="logit_bias",
    )
    pad_id: int | None = tensor("INT32", "Accepted, without effect.", _token_or_none)
    return_log_probs: bool = tensor(
        "BOOL", "Report log-probabilities, in details also each token's id.", default=False
    )
    top_log_probs: int = tensor(
        "INT32",
        "With log-probabilities: report so many of the likeliest tokens too, in details.",
        _number_of_likeliest,
        default=0,
    )
    return_prompt_log_probs: bool = tensor(
        "BOOL", "Report log-probabilities of the prompt's tokens, in details.", default=False
    )
    exclude_input_in_output: bool = tensor(
        "BOOL", "False: a text that is not streamed begins with the prompt.", default=True
    )
    num_return_sequences: int = tensor("INT32", "How many texts.", _only_one, default=1)
    beam_width: int = tensor("INT32", "Beam width.", _only_one, default=1)
    length_penalty: float | None = tensor(
        "FP32", "Accepted, without effect: it ranks beams.", _between(-math.inf, math.inf)
    )
    return_num_input_tokens: bool = tensor("BOOL", "Report the prompt's tokens.", default=False)
    return_num_output_tokens: bool = tensor("BOOL", "Report the text's tokens.", default=False)
    return_perf_metrics: bool = tensor("BOOL", "Report times and acceptance.", default=False)
    return_trace: bool = tensor(
        "BOOL", "Report each step and the candidate tree, in details of a stream.", default=False
    )
    decoding: str | None = tensor(
        "BYTES", f"{', '.join(DECODINGS)}; absent: speculation.decoding.", _one_of(DECODINGS)
    )
    drafter: str | None = tensor(
        "BYTES",
        "Who makes candidates, of those that are loaded.",
        _one_of((*DRAFTERS, *WITHOUT_DRAFT)),
    )
    growth: str | None = tensor(
        "BYTES",
        f"How the draft's tree grows: {', '.join(GROWTHS)}; absent: as the pacing or "
        "speculation.growth has it.",
        _one_of(GROWTHS),
    )
    acceptance: str | None = tensor(
        "BYTES",
        "What makes a candidate final; a rule that changes the text only where "
        "speculation.lossy_acceptance lists it.",
        _one_of(RULES),
    )
    draft_key: str | None = tensor(
        "BYTES",
        "A device drafts: it sends candidates to the model remote with this fresh secret.",
        _secret,
    )
    cache_salt: str = tensor(
        "BYTES",
        "Only requests with the same one share kept KV (cache.isolated says what absent means) and "
        "n-grams (speculation.shared_ngrams; absent: none).",
        _short_name,
        default="",
    )
    skip_reading_prefix_cache: bool = tensor(
        "BOOL", "Read the whole prompt, and keep nothing of this text.", default=False
    )
    guided_decoding_guide_type: str = tensor(
        "BYTES", f"What guides the text: {', '.join(GUIDE_TYPES)}.", _known_guide_type, default=""
    )
    guided_decoding_guide: str = tensor(
        "BYTES", "The schema, expression, grammar or choices.", _bounded_guide, default=""
    )


Request = TypeVar("Request", bound=GenerateRequest)


def tensors(table: type[GenerateRequest]) -> tuple[Tensor, ...]:
    """The table as a list, in the order of its fields."""
    return tuple(Tensor(name=f.name, **f.metadata) for f in fields(table))


def parse(
    table: type[Request],
    arrays: Mapping[str, NDArray[Any]],
    bounds: Bounds,
    required: Iterable[str] = (),
) -> Request:
    """Read and check the tensors of one request, each [1, 1] or, for a list, [1, n].

    Raises `Refusal` naming the field, its value and what is allowed.
    """
    check_shapes(table, {name: array.shape for name, array in arrays.items()}, bounds.limits)
    known = {tensor.name: tensor for tensor in tensors(table)}
    for name in required:
        if name not in arrays:
            raise missing(name, known[name].doc.rstrip(".").lower())
    values = {}
    for name, array in arrays.items():
        tensor = known[name]
        if tensor.most == VOCABULARY and array.size != bounds.vocabulary:
            raise _refused(
                name,
                f"has {array.size} elements; it must have one for each of {bounds.vocabulary} "
                "tokens",
            )
        value = _read(tensor, array)
        if tensor.many and tensor.most != VOCABULARY:
            _check_count(tensor, len(value), bounds.limits)
        if tensor.check is not None and (allowed := tensor.check(value, bounds)) is not None:
            raise invalid(name, value, allowed)
        values[name] = value
    return table(**values)


def check_shapes(
    table: type[GenerateRequest], shapes: Mapping[str, Sequence[int]], limits: LimitSettings
) -> None:
    """Refuse tensors that are none of the table's, or hold more than they may.

    Numbers become Python objects one by one, while everybody else waits: so this comes first.
    (Words have become objects before: Triton's backend unpacks them when it makes the request.)
    """
    known = {tensor.name: tensor for tensor in tensors(table)}
    for name, shape in shapes.items():
        if name not in known:
            raise invalid("input", name, f"one of {', '.join(known)}")
        count = math.prod(shape)
        if known[name].many:
            # A single one may be the empty word that stands for none. A list for the vocabulary
            # is checked by whoever knows how large that is.
            if count != 1 and known[name].most != VOCABULARY:
                _check_count(known[name], count, limits)
        elif count != 1:
            raise _refused(name, f"has shape {list(shape)}; it must be one value, of shape [1, 1]")


def check_parameters(parameters: Iterable[str]) -> None:
    """Refuse request parameters that nobody understands; a misspelt input arrives as one."""
    for name in parameters:
        if name not in PARAMETERS and not name.startswith("triton_"):
            known = ", ".join(tensor.name for tensor in tensors(GenerateRequest))
            raise invalid("parameter", name, f"one of {', '.join(PARAMETERS)}; inputs are {known}")


def one_prompt(names: Container[str]) -> tuple[str, ...]:
    """Which tensor must be there for a prompt. Raises `Refusal` if it comes in two ways."""
    if "input_ids" not in names:
        return ("text_input",)
    if "text_input" in names:
        raise _refused("input_ids", "and text_input are both there; send one of them")
    return ("input_ids",)


def output_budget(request: GenerateRequest, prompt_tokens: int, limits: LimitSettings) -> int:
    """How many tokens the request may generate after a prompt of so many tokens.

    Raises `Refusal` when the prompt is too long or leaves less room than `max_tokens` asks for.
    """
    field_name = "input_ids" if request.input_ids else "text_input"
    if not 1 <= prompt_tokens <= limits.prompt_tokens:
        raise Refusal(
            "INVALID_ARGUMENT",
            f"{field_name} is {prompt_tokens} tokens long; it must be 1 to {limits.prompt_tokens} "
            "(limits.prompt_tokens)",
        )
    room = limits.context_tokens - prompt_tokens
    if request.max_tokens is None:
        return min(limits.default_max_tokens, room)
    if request.max_tokens > room:
        raise invalid(
            "max_tokens",
            request.max_tokens,
            f"at most {room} after a prompt of {prompt_tokens} tokens "
            f"(limits.context_tokens is {limits.context_tokens})",
        )
    return request.max_tokens


def salt_of(request: GenerateRequest) -> bytes:
    """Who may be told of the text, [SALT_BYTES]; `NO_SALT` also where nothing of it is kept."""
    if request.skip_reading_prefix_cache or not request.cache_salt:
        return NO_SALT
    return hashlib.blake2b(request.cache_salt.encode(), digest_size=SALT_BYTES).digest()


def guide_of(request: GenerateRequest) -> Guide | None:
    """What guides the text; None: nothing does.

    Raises `Refusal` when kind and guide do not belong together.
    """
    kind, text = request.guided_decoding_guide_type, request.guided_decoding_guide
    if not kind:
        if text:
            raise missing("guided_decoding_guide_type", f"one of {', '.join(GUIDE_TYPES)}")
        return None
    if kind == "json":
        if text:
            raise invalid(
                "guided_decoding_guide",
                text,
                "absent, since json is any JSON; send a schema as json_schema",
            )
    elif not text:
        raise missing("guided_decoding_guide", f"what {kind} stands for")
    return Guide(kind, text)


def _check_count(tensor: Tensor, count: int, limits: LimitSettings) -> None:
    assert tensor.most is not None
    allowed: int = getattr(limits, tensor.most)
    if count > allowed:
        raise _refused(
            tensor.name,
            f"has {count} elements; it must have at most {allowed} (limits.{tensor.most})",
        )


def _refused(name: str, why: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"{name} {why}", field=name)


def _read(tensor: Tensor, array: NDArray[Any]) -> Any:
    values = [_element(tensor, item) for item in array.reshape(-1).tolist()]
    if tensor.many:
        # Clients of TensorRT-LLM send [[""]] for "none".
        return tuple(value for value in values if value != "")
    return values[0]


def _element(tensor: Tensor, item: Any) -> Any:
    if tensor.dtype == "FP32":
        # The number that was meant: 0.8, not the 0.800000011920929 that 32 bits make of it.
        return float(str(np.float32(item)))
    if tensor.dtype != "BYTES":
        return item
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(tensor.name, item, f"valid UTF-8 ({error.reason} at {error.start})") from None
