"""The tensors of the `ensemble` model: the one table of names, dtypes and shapes.

The fields of `GenerateRequest` (inputs) and `Response` (outputs) *are* that table: a field is a
tensor, and its metadata says how it travels. Names and dtypes are those of TensorRT-LLM's Triton
ensemble; docs/wire.md names what CARD adds.

The model batches at most one request, so every input is sent with a leading 1: shape [1, 1],
or [1, n] for a list.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferInput, InferResult

from card_client.errors import invalid


@dataclass(frozen=True)
class Tensor:
    """How one field travels: Triton's name and dtype; `many` means dims [-1] instead of [1]."""

    name: str
    dtype: str
    many: bool
    help: str
    required: bool


def _tensor(
    dtype: str, help: str, *, name: str = "", many: bool = False, default: Any = None
) -> Any:
    metadata = {"name": name, "dtype": dtype, "many": many, "help": help}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class GenerateRequest:
    """One completion to ask for. What is None is not sent, and the server's default holds."""

    text_input: str | None = _tensor("BYTES", "The prompt; None: input_ids.", default=MISSING)
    max_tokens: int | None = _tensor("INT32", "How many new tokens at most.")
    _: KW_ONLY
    input_ids: Sequence[int] | None = _tensor(
        "INT32", "The prompt's tokens, in place of its text.", many=True
    )
    stream: bool | None = _tensor("BOOL", "Send the text as it is generated.")
    temperature: float | None = _tensor("FP32", "Sampling temperature; 0 is greedy.")
    top_k: int | None = _tensor("INT32", "Sample from the k likeliest tokens; 0 is off.")
    top_p: float | None = _tensor("FP32", "Sample from the likeliest tokens of mass p; 1 is off.")
    min_p: float | None = _tensor("FP32", "Least share of the likeliest token's probability.")
    repetition_penalty: float | None = _tensor("FP32", "Divides scores of tokens seen; 1 is off.")
    presence_penalty: float | None = _tensor("FP32", "Subtracted once from tokens seen.")
    frequency_penalty: float | None = _tensor("FP32", "Subtracted per occurrence of a token.")
    min_tokens: int | None = _tensor("INT32", "No end of text before so many new tokens.")
    seed: int | None = _tensor("UINT64", "The same seed gives the same text.")
    stop_words: Sequence[str] | None = _tensor("BYTES", "The text ends before these.", many=True)
    bad_words: Sequence[str] | None = _tensor("BYTES", "Texts never to generate.", many=True)
    end_id: int | None = _tensor("INT32", "Token id that ends the text.")
    stop_token_ids: Sequence[int] | None = _tensor(
        "INT32", "Further token ids that end the text.", many=True
    )
    logit_bias_ids: Sequence[int] | None = _tensor("INT32", "Token ids to bias.", many=True)
    logit_bias_values: Sequence[float] | None = _tensor(
        "FP32", "What is added to the logit of each of these.", many=True
    )
    pad_id: int | None = _tensor("INT32", "Token id for padding.")
    return_log_probs: bool | None = _tensor("BOOL", "Report log-probabilities.")
    top_log_probs: int | None = _tensor("INT32", "Report so many of the likeliest tokens too.")
    return_prompt_log_probs: bool | None = _tensor(
        "BOOL", "Report log-probabilities of the prompt's tokens."
    )
    exclude_input_in_output: bool | None = _tensor("BOOL", "Leave the prompt out of the text.")
    num_return_sequences: int | None = _tensor("INT32", "How many texts; only 1 is served.")
    beam_width: int | None = _tensor("INT32", "Beam width; only 1 is served.")
    length_penalty: float | None = _tensor("FP32", "Accepted, without effect.")
    return_num_input_tokens: bool | None = _tensor("BOOL", "Report the prompt's tokens.")
    return_num_output_tokens: bool | None = _tensor("BOOL", "Report the text's tokens.")
    return_perf_metrics: bool | None = _tensor("BOOL", "Report timings and acceptance.")
    cache_salt: str | None = _tensor("BYTES", "Only requests with the same one share what is kept.")
    skip_reading_prefix_cache: bool | None = _tensor(
        "BOOL", "Read the whole prompt, and keep nothing of this text."
    )
    return_trace: bool | None = _tensor("BOOL", "Report in details, step by step, what happened.")
    decoding: str | None = _tensor(
        "BYTES", "auto, card, pearl, draft_then_verify, branch, ssd or autoregressive."
    )
    drafter: str | None = _tensor("BYTES", "Who makes candidates, of what the server has loaded.")
    forbidden_drafter: str | None = _tensor("BYTES", "Who makes no candidates.")
    growth: str | None = _tensor(
        "BYTES", "best_first, layered, sampled, fan_out, branch, graph or lattice."
    )
    acceptance: str | None = _tensor(
        "BYTES", "exact, or loose, which changes the text, where the server allows it."
    )
    draft_key: str | None = _tensor("BYTES", "Secret with which a device sends its drafts.")
    prediction: str | None = _tensor("BYTES", "What the text may well say.")
    guided_decoding_guide_type: str | None = _tensor(
        "BYTES", "What guides the text: json, json_schema, regex, ebnf_grammar or choice."
    )
    guided_decoding_guide: str | None = _tensor("BYTES", "The schema, expression or grammar.")


@dataclass(frozen=True)
class Response:
    """What one response of the server carries; None where it did not say.

    Counts and rates are totals so far, times are the server's clock in nanoseconds.
    """

    text: str = _tensor("BYTES", "Text.", name="text_output", default="")
    accepted_bytes: int | None = _tensor("INT32", "Leading bytes of the text that were drafted.")
    finish_reason: str | None = _tensor("BYTES", "Why the text ended; empty while it goes on.")
    num_input_tokens: int | None = _tensor("INT32", "Tokens of the prompt.")
    num_output_tokens: int | None = _tensor("INT32", "Tokens generated.")
    cum_log_probs: float | None = _tensor("FP32", "Sum of the log-probabilities.")
    output_log_probs: tuple[float, ...] | None = _tensor(
        "FP32", "Log-probability of each token of this text.", many=True
    )
    details: str | None = _tensor("BYTES", "JSON of tokens and speculation, where asked for.")
    acceptance_rate: float | None = _tensor("FP32", "Accepted share of the drafted tokens.")
    total_accepted_draft_tokens: int | None = _tensor("INT32", "Drafted tokens accepted.")
    total_draft_tokens: int | None = _tensor("INT32", "Drafted tokens verified.")
    target_steps: int | None = _tensor("INT32", "Forward passes of the target.")
    cache_queries: int | None = _tensor("INT32", "Queries of the candidate cache.")
    cache_hits: int | None = _tensor("INT32", "Queries that gave candidates.")
    foreign_tokens: int | None = _tensor(
        "INT32", "Drafted tokens kept that the target would not have chosen."
    )
    arrival_time_ns: int | None = _tensor("INT64", "Arrival of the request.")
    first_scheduled_time_ns: int | None = _tensor("INT64", "First work on the request.")
    first_token_time_ns: int | None = _tensor("INT64", "First token.")
    last_token_time_ns: int | None = _tensor("INT64", "Last token.")
    batch_index: int | None = _tensor("INT32", "Always 0.")
    sequence_index: int | None = _tensor("INT32", "Always 0.")
    kv_cache_alloc_new_blocks: int | None = _tensor("INT32", "KV blocks allocated.")
    kv_cache_reused_blocks: int | None = _tensor("INT32", "KV blocks reused.")
    kv_cache_alloc_total_blocks: int | None = _tensor("INT32", "KV blocks in all.")

    @property
    def accepted_text(self) -> str:
        """The leading part of the text that the draft model had proposed."""
        # The boundary may fall inside a character; that character counts as corrected.
        return self.text.encode()[: self.accepted_bytes or 0].decode(errors="ignore")

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Ids of the tokens of this text, if the request had a `draft_key`."""
        return tuple(json.loads(self.details).get("output_ids", ())) if self.details else ()

    @property
    def corrected_text(self) -> str:
        """The rest of the text: what the target model wrote itself."""
        return self.text[len(self.accepted_text) :]


@dataclass(frozen=True)
class Draft:
    """What a device would write.

    position  tokens of the text that come before
    tokens    ids, in order
    """

    position: int
    tokens: tuple[int, ...]


class Delta(Response):
    """The next piece of a streamed text; all pieces concatenated are the text."""


class Completion(Response):
    """A whole text, delivered at once."""


def tensors(table: type) -> dict[str, Tensor]:
    """The table by field: `tensors(GenerateRequest)` or `tensors(Response)`."""
    return {
        f.name: Tensor(
            name=f.metadata["name"] or f.name,
            dtype=f.metadata["dtype"],
            many=f.metadata["many"],
            help=f.metadata["help"],
            required=f.default is MISSING,
        )
        for f in fields(table)
    }


INPUTS = tensors(GenerateRequest)
OUTPUTS = tensors(Response)


def encode(request: GenerateRequest) -> list[InferInput]:
    """The inputs to send: one tensor of shape [1, 1] or [1, n] for every field that is set.

    An empty list means the same as no list and is not sent. Raises `CardError` with
    `INVALID_ARGUMENT` when a value cannot travel as its tensor's dtype; whether a value makes
    sense is the server's to say.
    """
    inputs = []
    for attribute, tensor in INPUTS.items():
        value = getattr(request, attribute)
        if value is None and tensor.required and not request.input_ids:
            raise invalid(f"{tensor.name} is missing")
        values = _row(tensor, value)
        if values:
            array = np.array([values], dtype=_NUMPY[tensor.dtype])
            travelling = InferInput(tensor.name, list(array.shape), tensor.dtype)
            travelling.set_data_from_numpy(array)
            inputs.append(travelling)
    return inputs


def encode_draft(key: str, draft: Draft) -> list[InferInput]:
    """The inputs of the model `remote`, each of one dimension."""
    arrays = {
        "draft_key": np.array([utf8("draft_key", key)], np.object_),
        "position": np.array([draft.position], np.int32),
        "candidates": np.array(draft.tokens, np.int32),
    }
    inputs = []
    for name, array in arrays.items():
        dtype = "BYTES" if name == "draft_key" else "INT32"
        inputs.append(InferInput(name, list(array.shape), dtype))
        inputs[-1].set_data_from_numpy(array)
    return inputs


ResponseKind = TypeVar("ResponseKind", bound=Response)


def decode(kind: type[ResponseKind], result: InferResult) -> ResponseKind:
    """Reads a `Delta` or a `Completion` from one response, whatever shape its tensors have."""
    values: dict[str, Any] = {}
    for attribute, tensor in OUTPUTS.items():
        array: npt.NDArray[Any] | None = result.as_numpy(tensor.name)
        if array is None:
            continue
        row = array.reshape(-1).tolist()
        if tensor.dtype == "BYTES":
            row = [item.decode(errors="replace") for item in row]
        if tensor.many:
            values[attribute] = tuple(row)
        elif row:
            values[attribute] = row[0]
    return kind(**values)


_NUMPY: dict[str, Any] = {
    "BYTES": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "UINT64": np.uint64,
    "FP32": np.float32,
}


_LONGEST_SHOWN = 80


def _row(tensor: Tensor, value: Any) -> list[Any]:
    """The elements of the tensor's row, each checked against its dtype; none when not set."""
    if value is None:
        return []
    if not tensor.many:
        return [_element(tensor, value)]
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        kind = "texts" if tensor.dtype == "BYTES" else "numbers"
        raise invalid(f"{tensor.name} is {_shown(value)}; it must be a list of {kind}")
    if _are_plain_int32(tensor, value):
        return list(value)
    return [_element(tensor, item) for item in value]


def _are_plain_int32(tensor: Tensor, value: Sequence[Any]) -> bool:
    """True only of elements that `_element` takes: a prompt of 100,000 ids is looked at at once."""
    bounds = np.iinfo(np.int32)
    return (
        tensor.dtype == "INT32"
        and set(map(type, value)) == {int}
        and bounds.min <= min(value)
        and max(value) <= bounds.max
    )


def _element(tensor: Tensor, value: Any) -> Any:
    if tensor.dtype == "BYTES":
        return utf8(tensor.name, value)
    if tensor.dtype == "BOOL":
        if not isinstance(value, bool | np.bool_):
            raise invalid(f"{tensor.name} is {_shown(value)}; it must be true or false")
        return bool(value)
    if tensor.dtype == "FP32":
        if not isinstance(value, Real) or isinstance(value, bool):
            raise invalid(f"{tensor.name} is {_shown(value)}; it must be a number")
        return _fitting_32_bits(tensor, value)
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise invalid(f"{tensor.name} is {_shown(value)}; it must be a whole number")
    whole, bounds = int(value), np.iinfo(_NUMPY[tensor.dtype])
    if not bounds.min <= whole <= bounds.max:
        raise invalid(
            f"{tensor.name} is {_shown(whole)}; it must lie in [{bounds.min}, {bounds.max}]"
        )
    return whole


def _fitting_32_bits(tensor: Tensor, value: Any) -> float:
    """Infinities and what is not a number travel; the server says what it thinks of them."""
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        sent = False
    else:
        kept = abs(number) <= np.finfo(np.float32).max and bool(number) == bool(np.float32(number))
        sent = kept or not math.isfinite(number)
    if not sent:
        raise invalid(f"{tensor.name} is {_shown(value)}; it does not fit into 32 bits")
    return number


def _shown(value: Any) -> str:
    """As it is written, cut where that is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than some thousand digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def utf8(name: str, value: Any) -> bytes:
    """The text `value` of what is called `name`, as it travels. Raises `CardError`."""
    if not isinstance(value, str):
        raise invalid(f"{name} is {_shown(value)}; it must be text")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"{name} is not valid Unicode text: {error}") from error
