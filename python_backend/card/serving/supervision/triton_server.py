"""Find a Triton server on this machine and say how it is started.

Two kinds of installation are known. The `nvidia-pytriton` wheel carries the server binary, its
libraries and the Python backend with one stub per Python version; a container carries them under
`/opt/tritonserver`. Either becomes a `TritonInstall`, which turns `ServerOptions` into a command
line and an environment. Nothing here starts or watches a process.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from card.serving.supervision.prerequisites import check_numpy, shared_libpython

SYSTEM_ROOT = Path("/opt/tritonserver")
"""Where NVIDIA's containers keep the server."""

RESTRICTED_APIS = ("model-repository", "shared-memory", "trace", "logging")
"""What only the supervisor may call: these load code, map memory and write files."""

MINIMUM_REGION_BYTES = 1 << 20
"""The Python backend refuses a smaller shared-memory region per model instance."""


class TritonNotFoundError(RuntimeError):
    """There is no usable Triton server; the message says where we looked and what to do."""


@dataclass(frozen=True)
class Restriction:
    """A header that a caller must send to use the APIs in `RESTRICTED_APIS`.

    `name` and `value` may hold letters, digits, `-` and `_` only: Triton splits the option at
    `:`, `,` and `=`. HTTP/2 wants `name` in lower case.
    """

    name: str
    value: str

    def __post_init__(self) -> None:
        for field, text in (("name", self.name), ("value", self.value)):
            if not text or not text.replace("-", "").replace("_", "").isalnum():
                raise ValueError(
                    f"restriction {field} {text!r} is not usable: "
                    "only letters, digits, '-' and '_' are allowed"
                )
        if self.name != self.name.lower():
            raise ValueError(f"restriction name {self.name!r} must be in lower case")

    def option(self, *further: str) -> str:
        """That of the server for `RESTRICTED_APIS` and `further` ones."""
        return f"{','.join((*RESTRICTED_APIS, *further))}:{self.name}={self.value}"

    @property
    def http_headers(self) -> dict[str, str]:
        return {self.name: self.value}


@dataclass(frozen=True)
class ServerOptions:
    """What one run of the server is told.

    `load_models` are loaded at start, all others on request only (explicit model control).
    `region_prefix` begins the names of the Python backend's files in shared memory, which grow when
    a tensor needs more.
    `grpc_address` is where gRPC listens instead of `address`: `unix:` and the beginning of a
    socket's path, which ends with the port.
    `closed_over_http` are APIs that only the supervisor may call there, besides those that nobody
    else may call anywhere.
    `extra_arguments` go to the server as they are, for TLS and the like.
    """

    model_repository: Path
    load_models: tuple[str, ...]
    restriction: Restriction
    region_prefix: str
    http_port: int
    grpc_port: int
    metrics_port: int
    address: str
    grpc_address: str | None = None
    closed_over_http: tuple[str, ...] = ()
    extra_arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class TritonInstall:
    """A server binary, the backends that belong to it, and the libraries it needs."""

    binary: Path
    backends: Path
    library_paths: tuple[Path, ...]

    def command(self, options: ServerOptions) -> list[str]:
        """The server's command line, program first."""
        python = "--backend-config=python"
        return [
            str(self.binary),
            f"--backend-directory={self.backends}",
            f"--model-repository={options.model_repository}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in options.load_models),
            "--disable-auto-complete-config",
            "--exit-on-error=true",
            f"--http-address={options.address}",
            f"--http-port={options.http_port}",
            f"--grpc-address={options.grpc_address or options.address}",
            f"--grpc-port={options.grpc_port}",
            f"--metrics-address={options.address}",
            f"--metrics-port={options.metrics_port}",
            f"--http-restricted-api={options.restriction.option(*options.closed_over_http)}",
            f"--grpc-restricted-protocol={options.restriction.option()}",
            f"{python},shm-region-prefix-name={options.region_prefix}",
            f"{python},shm-default-byte-size={MINIMUM_REGION_BYTES}",
            *options.extra_arguments,
        ]

    def environment(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """The server's whole environment, built on `inherited` (this process's by default).

        The stub embeds a Python that takes its `sys.prefix` from the first `python3` on PATH, so
        the folder of the running interpreter (the virtual environment's `bin`) comes first.
        """
        environment = dict(os.environ if inherited is None else inherited)
        environment["PATH"] = _joined(Path(sys.prefix, "bin"), environment.get("PATH"))
        for library_path in reversed(self.library_paths):
            environment["LD_LIBRARY_PATH"] = _joined(
                library_path, environment.get("LD_LIBRARY_PATH")
            )
        return environment


def find_triton(runtime_directory: Path, system_root: Path = SYSTEM_ROOT) -> TritonInstall:
    """Locate the server: a container's own installation, else that of the wheel.

    The wheel's Python backend is staged under `runtime_directory`, which must outlive the server.
    Raises `TritonNotFoundError` where neither is there.
    """
    if (system_root / "bin/tritonserver").exists():
        return system_install(system_root)
    return wheel_install(runtime_directory)


def system_install(root: Path) -> TritonInstall:
    """The server under `root`, with the backends and the Python stub that it came with."""
    install = _installed(root / "bin/tritonserver", root)
    if missing := _missing(install):
        raise TritonNotFoundError(
            f"no Triton server under {root}: {missing} is missing; "
            "use a Triton container with the Python backend, or choose the wheel"
        )
    return install


def named_install(binary: Path) -> TritonInstall:
    """That of the binary which `serving.tritonserver` names, laid out as in a container."""
    install = _installed(binary, binary.parent.parent)
    problem = None
    if not binary.is_file() or not os.access(binary, os.X_OK):
        problem = "it is no file that this user can execute"
    elif missing := _missing(install):
        problem = f"{missing} is missing"
    if problem is None:
        return install
    raise TritonNotFoundError(
        f"serving.tritonserver is {binary}: {problem}; it must be the server of an installation "
        f"with the Python backend, such as {SYSTEM_ROOT}/bin/tritonserver: correct it, or "
        "leave it out for the server that this environment has"
    )


def _installed(binary: Path, root: Path) -> TritonInstall:
    """As in a container, whether it is there or not."""
    return TritonInstall(binary, root / "backends", library_paths=(root / "lib",))


def _missing(install: TritonInstall) -> Path | None:
    """What an installation lacks."""
    needed = (install.binary, install.backends / "python/triton_python_backend_stub")
    return next((path for path in needed if not path.exists()), None)


def wheel_install(runtime_directory: Path, numpy: str | None = None) -> TritonInstall:
    """The server inside the installed `nvidia-pytriton` wheel, whose Python backend cannot read
    strings of NumPy 2; that of a container can since 24.11."""
    specification = importlib.util.find_spec("pytriton")
    if specification is None or specification.origin is None:
        raise TritonNotFoundError(
            f"no Triton server: {SYSTEM_ROOT}/bin/tritonserver does not exist and nvidia-pytriton "
            "is not installed in this environment; run scripts/setup"
        )
    if problem := check_numpy(numpy):
        raise TritonNotFoundError(problem)
    package = Path(specification.origin).parent
    root = package / "tritonserver"
    libpython = shared_libpython()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if libpython is None or not stub.exists():
        raise TritonNotFoundError(
            f"Triton's Python backend cannot run on {sys.executable} (Python {version}): it needs "
            "a shared libpython and one of "
            + ", ".join(sorted(path.name for path in stub.parent.parent.iterdir()))
        )
    backends = _stage_python_backend(root / "backends/python", stub, runtime_directory)
    libraries = package.parent / "nvidia_pytriton.libs"
    return TritonInstall(root / "bin/tritonserver", backends, (libraries, libpython.parent))


def _stage_python_backend(backend: Path, stub: Path, runtime_directory: Path) -> Path:
    """Bring the backend and the stub of one Python version together, as the server expects them."""
    backends = runtime_directory / "backends"
    staged = backends / "python"
    staged.mkdir(parents=True, exist_ok=True)
    parts = (backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub)
    for part in parts:
        link = staged / part.name
        link.unlink(missing_ok=True)
        link.symlink_to(part)
    return backends


def _joined(first: Path, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else str(first)
