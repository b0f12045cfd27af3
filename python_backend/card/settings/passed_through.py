"""Options that the settings pass through to tritonserver and to `card-guard`."""

from __future__ import annotations

_PORT_OPTIONS = ("--http-port", "--grpc-port", "--metrics-port")
_WATCHED = ("--allow-http", "--allow-grpc")
_OPEN = ("true", "1")


def not_the_supervisors(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Options of tritonserver, of which none is for the supervisor to give."""
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


def not_of_the_guard(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Options of `card-guard`, of which none is for the supervisor to give."""
    for argument in arguments:
        option = argument.partition("=")[0]
        if option in _OF_THE_GUARD:
            raise ValueError(
                f"{option} is for the supervisor to say, which knows where the server is, "
                "serving.address and serving.grpc_port"
            )
    return arguments


def check_one_door(triton_arguments: tuple[str, ...]) -> None:
    """Raises `ValueError` on options for a door that clients do not come to: the guard has it."""
    for argument in triton_arguments:
        option = argument.partition("=")[0]
        # The server takes an option by any beginning that no other one has.
        if any(known.startswith(option) for known in _OF_CLIENTS_GRPC):
            raise ValueError(
                f"triton_arguments has {option}, but with guard: true clients meet the guard: "
                "give its own options as guard_arguments (--tls-cert, --tls-key, "
                "--tls-client-ca, --connection-s)"
            )
