"""How the service speculates, what it holds, allows, serves and says."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from card.settings.section import OfWrongKindError, OneOf, Section
from card.speculation.acceptance import RULES
from card.speculation.control import CONTROLLERS
from card.speculation.drafters import DRAFTERS
from card.speculation.drafters.growth import GROWTHS
from card.speculation.pacing import PACINGS
from card.speculation.sources import SHAPES, WITHOUT_DRAFT

RowCount = Annotated[int, Field(ge=1, le=64)]
LogFormat = Literal["text", "json"]


class SpeculationSettings(Section):
    """How the draft grows its tree and what the target takes from it."""

    decoding: Annotated[str, OneOf(("auto", *PACINGS))] = "auto"
    """Used when a request names none; ``auto``: before each pass the controller chooses among the
    draft, n-grams and neither, by what it measures."""
    drafter: Annotated[str, OneOf(("auto", *DRAFTERS, *WITHOUT_DRAFT))] = "auto"
    """What makes candidates in the draft's process; ``auto``: what suits the draft's engine.
    ``hierarchy`` needs a `draft_small` too.
    ``ngram`` or ``phrases``: no draft is loaded, and the target proposes by itself (Cacheback)."""
    parcel: Annotated[int, Field(ge=1, le=16)] = 4
    """Tokens that `draft_small` writes for one review by the draft (`drafter: hierarchy`);
    ``scripts/plan hierarchy`` says how many are best."""
    proposals: Annotated[str, OneOf(WITHOUT_DRAFT)] = "ngram"
    """What the target adds to a query by itself: what followed the last few tokens before, or
    ``phrases``: that, and what it said behind candidates that it rejected (Ouroboros)."""
    ngram_table: Path | Literal["auto"] | None = "auto"
    """Table of what usually follows what, made from a corpus by ``scripts/ngrams`` for this
    target's vocabulary; ``auto``: the file ``ngrams.npz`` in the target's folder, if there is one;
    null: none."""
    shared_ngrams: bool = False
    """Whether proposals may come from earlier texts with the same `cache_salt`. How fast a text
    comes then tells a little of those: see SECURITY.md."""
    growth: Annotated[str, OneOf(GROWTHS)] = "best_first"
    """Which nodes a draft pass expands (docs/speculation.md); a pacing may come with a rule of its
    own."""
    siblings: Annotated[tuple[Annotated[int, Field(ge=1, le=8)], ...], Field(min_length=1)] = (
        4,
        2,
        2,
    )
    """Children of a node by its depth, the text's end first; `growth: sampled` grows as deep as
    this list is long."""
    fan_out: Annotated[int, Field(ge=1, le=7)] = 3
    """Tokens beside a chain's own that `growth: fan_out` prepares for at each place."""
    doubt: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Probability up to which a token is doubtful, so that `growth: branch` branches there."""
    doubt_branches: Annotated[int, Field(ge=2, le=8)] = 3
    """Branches of a token that the draft gives next to no probability; 2 at least of any that is
    doubtful."""
    shared_tokens: Annotated[int, Field(ge=1, le=8)] = 2
    """Last tokens that must agree for nodes to share what is below them (`growth: graph`)."""
    width: Annotated[int, Field(ge=1, le=32)] = 4
    """Nodes that one draft pass expands, at most: fewer where the chances of more do not outweigh
    what their rows cost on this machine, and for sessions that share a pass. With `rows` a number
    always so many."""
    depth: Annotated[int, Field(ge=1, le=128)] = 32
    """How many tokens the tree may run ahead of what is committed."""
    lookahead: Annotated[int, Field(ge=0, le=16)] = 6
    """N-gram proposals, at most: behind a chain that leaves rows of a target pass unused, behind a
    text that the draft has just read, and (two at most) behind the likeliest node of a draft pass;
    0: none. While a text repeats itself so well that the draft is stopped, proposals fill all rows
    that are worth it."""
    query: Annotated[str, OneOf(SHAPES)] = "chain"
    """What the target verifies in a pass: one path of the tree, or up to `branches` paths."""
    branches: Annotated[int, Field(ge=1, le=8)] = 4
    """Most root-to-leaf paths of a subtree query; each keeps a replica of the target's KV cache."""
    rows: RowCount | Literal["auto"] = "auto"
    """Rows of one target pass (the last committed token and its candidates); ``auto`` chooses from
    the cost curve measured at load."""
    control: Annotated[str, OneOf(("auto", *CONTROLLERS))] = "auto"
    """What decides whether the draft works, and how many rows a pass has; ``auto``: `measured`, or
    `fixed` where `rows` is a number."""
    acceptance: Annotated[str, OneOf(name for name, rule in RULES.items() if rule.lossless)] = (
        "exact"
    )
    """What makes a candidate final."""
    lossy_acceptance: tuple[
        Annotated[str, OneOf(name for name, rule in RULES.items() if not rule.lossless)], ...
    ] = ()
    """Rules that change the text, which a request may ask for by name; none unless listed here."""
    loose_entropy: Annotated[float, Field(ge=0, le=1)] = 0.3
    """`loose` keeps a candidate that is not the target's choice only where the entropy of the
    target's distribution is at least this share of the largest there can be (θ)."""
    loose_window: Annotated[int, Field(ge=0, le=62)] = 6
    """Candidates that must be the target's choices behind one that is not, for `loose` to keep it
    (W); `rows` must have room for two more."""
    gamma: Annotated[int, Field(ge=1, le=32)] = 8
    """Chain length of draft-then-verify, PEARL, SpecBranch and SSD."""

    @property
    def paths(self) -> int:
        """Most root-to-leaf paths of a query."""
        return self.branches if self.query == "subtree" else 1


class CacheSettings(Section):
    """Geometry of the candidate cache, and what is kept of texts."""

    slots: Annotated[int, Field(ge=1, le=256)] = 16
    """Requests that are answered at the same time; others wait."""
    nodes: Annotated[int, Field(ge=64, le=8192)] = 512
    """Most candidate nodes of one tree."""
    kept_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = 8192
    """Tokens of earlier texts whose KV both engines keep beside that of the slots, so that a text
    that begins alike is not read again; those not used for longest make room. 0: none."""
    isolated: bool = False
    """Whether only requests with the same `cache_salt` share what is kept, and those without one
    share nothing; else those without one share with each other."""
    directory: Path = Path("/dev/shm")
    """Shared-memory mount that holds the pool; the user who serves must be able to write there."""


class LimitSettings(Section):
    """What one request may ask for; more is refused by name."""

    context_tokens: Annotated[int, Field(ge=2, le=1 << 20)] = 4352
    """Prompt and output together; at most what the models were built for."""
    prompt_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        default_factory=lambda set_: min(4096, set_["context_tokens"] - 1)
    )
    """Default: 4096, or what a smaller context leaves."""
    prompt_bytes: Annotated[int, Field(ge=1, le=1 << 26)] = Field(
        default_factory=lambda set_: max(4096, 32 * set_["prompt_tokens"])
    )
    """Longer texts are refused before they are tokenized, which would hold up everybody else;
    default: 32 for each of `prompt_tokens`."""
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    """Most new tokens that a request may ask for."""
    default_max_tokens: Annotated[int, Field(ge=1)] = Field(
        default_factory=lambda set_: min(256, set_["max_tokens"])
    )
    """Output limit of a request that names none; default: 256, or a smaller `max_tokens`."""
    queued_requests: Annotated[int, Field(ge=0, le=65536)] = 64
    """Requests that may wait for a slot; one more is UNAVAILABLE at once."""
    queue_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """How long a request may wait for a slot."""
    stop_words: Annotated[int, Field(ge=0, le=256)] = 16
    """Stop words of one request."""
    bad_words: Annotated[int, Field(ge=0, le=256)] = 32
    """Bad words of one request."""
    word_bytes: Annotated[int, Field(ge=1, le=65536)] = 256
    """Longest stop word or bad word in UTF-8 bytes."""
    bad_word_tokens: Annotated[int, Field(ge=1, le=65536)] = 512
    """Token ids of all bad words of one request together."""
    stop_token_ids: Annotated[int, Field(ge=0, le=32)] = 16
    """Token ids that end the text of one request beside those of the model."""
    logit_bias: Annotated[int, Field(ge=0, le=65536)] = 300
    """Token ids whose logits one request may change."""
    top_log_probs: Annotated[int, Field(ge=0, le=20)] = 20
    """Likeliest tokens that one request may ask for at each position. The pool has 8 bytes for each
    of them at every position of prompt and output of every slot."""
    guide_bytes: Annotated[int, Field(ge=1, le=1 << 20)] = 65536
    """Longest schema, regular expression, grammar or list of choices that guides a text."""
    guide_compile_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """How long such a guide may take to compile; one that takes longer is refused."""


def _ipv4(address: str) -> str:
    try:
        return str(ipaddress.IPv4Address(address))
    except ValueError:
        raise OfWrongKindError("no IPv4 address") from None


_PORT_OPTIONS = ("--http-port", "--grpc-port", "--metrics-port")
_WATCHED = ("--allow-http", "--allow-grpc")
_OPEN = ("true", "1")


def _not_ours(arguments: tuple[str, ...]) -> tuple[str, ...]:
    for argument in arguments:
        option, _, value = argument.partition("=")
        # The server takes an option by any beginning that no other one has.
        meant = [ours for ours in (*_PORT_OPTIONS, *_WATCHED) if ours.startswith(option)]
        if option in _PORT_OPTIONS:
            field = option.removeprefix("--").replace("-", "_")
            raise ValueError(f"{option} is for the supervisor to give; set serving.{field}")
        if option in _WATCHED and value.lower() in _OPEN:
            continue
        if option in _WATCHED:
            raise ValueError(
                f"{option}: the supervisor asks the server over HTTP, clients over gRPC; "
                "http_inference: false closes inference over HTTP"
            )
        if meant and len(option) > len("--"):
            raise ValueError(f"{option} is cut short ({', '.join(meant)}?); write it in full")
    return arguments


_OF_CLIENTS_GRPC = (
    "--grpc-address",
    "--grpc-use-ssl",
    "--grpc-use-ssl-mutual",
    "--grpc-server-cert",
    "--grpc-server-key",
    "--grpc-root-cert",
    "--grpc-max-connection-age",
)
"""Options of Triton for the door that clients come to, which with a guard is the guard's."""
_OF_THE_GUARD = (
    "--triton",
    "--triton-ca",
    "--triton-cert",
    "--triton-key",
    "--host",
    "--port",
    "--drain-s",
    "--beats",
    "--help",
)
"""Its options that the supervisor gives, or that make no sense behind it."""


def _not_of_the_guard(arguments: tuple[str, ...]) -> tuple[str, ...]:
    for argument in arguments:
        option = argument.partition("=")[0]
        if option in _OF_THE_GUARD:
            raise ValueError(
                f"{option} is for the supervisor to say, which knows where the server is, "
                "serving.address and serving.grpc_port"
            )
    return arguments


class ServingSettings(Section):
    """Triton and the supervisor."""

    address: Annotated[
        str,
        AfterValidator(_ipv4),
        Field(
            json_schema_extra={
                "form": "an IPv4 address of this machine, or 0.0.0.0 for all",
                "examples": ["127.0.0.1"],
            }
        ),
    ] = "127.0.0.1"
    """IPv4 address to listen on; 0.0.0.0: all of this machine."""
    http_port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Triton's, for requests and its own health."""
    grpc_port: Annotated[int, Field(ge=1, le=65535)] = 8001
    """Triton's, or with `guard` the guard's, for requests."""
    metrics_port: Annotated[int, Field(ge=1, le=65535)] = 8002
    """Triton's, for Prometheus."""
    health_port: Annotated[int, Field(ge=1, le=65535)] = 8003
    """The supervisor's own liveness and readiness."""
    http_inference: bool = True
    """Whether Triton's own HTTP port takes requests for a text; else it refuses them, whatever they
    hold (SECURITY.md). gRPC and the OpenAI gateway, which uses it, answer either way."""
    guard: bool = False
    """Whether clients' gRPC goes through `card-guard`, which refuses requests that would end the
    server (SECURITY.md), and which the supervisor starts and watches. It listens on `grpc_port`;
    Triton's own gRPC is then a socket that nobody else can reach."""
    guard_arguments: Annotated[
        tuple[str, ...],
        AfterValidator(_not_of_the_guard),
        Field(examples=[["--message-bytes=1000000"]]),
    ] = ()
    """Further options for `card-guard`, passed through (TLS, limits)."""
    flush_ms: Annotated[float, Field(ge=0, le=1000)] = 20.0
    """Deltas after the first are gathered for so long, with many streams for longer."""
    deltas_per_s: Annotated[float, Field(ge=1, le=1e6)] | None = None
    """Deltas of all streams together, beside first and last ones, so that sending them leaves the
    cores to the models. Absent: 100 for each core."""
    prefill_chunk: Annotated[int, Field(ge=8, le=256)] = 64
    """Prompt tokens that one pass may take, less the rows that streams verify in it; OpenVINO in
    float32 takes 64 at most."""
    engine_timeout_s: Annotated[float, Field(ge=0.5, le=600)] = 2.0
    """An engine silent for longer is killed and loaded again, as is the guard; engines speak ten
    times a second, the guard four times."""
    load_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    """How long the start of the server, or loading one model again, may take."""
    findings: Path | None = None
    """Directory that keeps from start to start what models on processors found out at load: that
    rows are independent, and what passes cost. It is believed while weights, options, versions and
    processor are the same. Absent: the user's cache (`$XDG_CACHE_HOME/card-triton`), or where there
    is none, no longer than the service."""
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """How long open streams may finish after SIGTERM."""
    tritonserver: Path | None = None
    """A tritonserver binary in its installation (/opt/tritonserver/bin/tritonserver); absent: the
    container's, else the one that the wheel carries."""
    triton_arguments: Annotated[
        tuple[str, ...], AfterValidator(_not_ours), Field(examples=[["--log-verbose=1"]])
    ] = ()
    """Further options for tritonserver, passed through (TLS, logging)."""

    @property
    def ports(self) -> dict[str, int]:
        """Every port that clients and operators reach, by its field."""
        return {
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "metrics_port": self.metrics_port,
            "health_port": self.health_port,
        }

    @model_validator(mode="after")
    def _each_its_own_port(self) -> ServingSettings:
        owners: dict[int, str] = {}
        for field, port in self.ports.items():
            if (owner := owners.setdefault(port, field)) != field:
                raise ValueError(f"{owner} and {field} are both {port}: choose two different ports")
        return self

    @model_validator(mode="after")
    def _one_door_for_grpc(self) -> ServingSettings:
        if not self.guard:
            if self.guard_arguments:
                raise ValueError(
                    "guard_arguments are given, but guard is false: set it to true, or leave them "
                    "out"
                )
            return self
        for argument in self.triton_arguments:
            option = argument.partition("=")[0]
            # The server takes an option by any beginning that no other one has.
            if any(known.startswith(option) for known in _OF_CLIENTS_GRPC):
                raise ValueError(
                    f"triton_arguments has {option}, but with guard: true clients meet the guard: "
                    "give its own options as guard_arguments (--tls-cert, --tls-key, "
                    "--tls-client-ca, --connection-s)"
                )
        return self


def _names_a_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        raise ValueError("it must name a host, and a port from 1 to 65535 if any")
    return url


CollectorUrl = Annotated[
    str,
    Field(
        pattern=r"^https?://[^\s,]+$",
        json_schema_extra={
            "form": "an address that begins with http:// or https://, without spaces and commas",
            "examples": ["http://127.0.0.1:4318/v1/traces"],
        },
    ),
    AfterValidator(_names_a_host),
]


class ObservabilitySettings(Section):
    """Logs and traces; metrics are always on."""

    log_format: LogFormat = "text"
    """Lines of the supervisor and the models: `key=value` pairs, or one JSON object each."""
    log_requests: bool = True
    """One line per request: its id, how it ended, tokens and times."""
    log_prompts: bool = False
    """Put prompts, and the refused values of other inputs, into the log too."""
    trace_url: CollectorUrl | None = None
    """OTLP/HTTP collector of OpenTelemetry traces (http://HOST:4318/v1/traces); absent: none."""
    trace_rate: Annotated[int, Field(ge=1)] = 100
    """One request in so many is traced, besides those whose client sent a `traceparent`."""
