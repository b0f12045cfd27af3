"""Find a Triton server on this machine and say how it is started.

The `nvidia-pytriton` wheel carries the server, its libraries and the Python backend with one stub
per Python version; a container carries them under `/opt/tritonserver`. Nothing here starts or
watches a process.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from card.serving.addresses import bracketed, for_triton_http
from card.serving.prerequisites import check_numpy, shared_libpython
from card.settings import ObservabilitySettings, ServingSettings, Settings

SYSTEM_ROOT = Path("/opt/tritonserver")
"""Where NVIDIA's containers keep the server."""

RESTRICTED_APIS = ("model-repository", "shared-memory", "trace", "logging")
"""What only the supervisor may call: these load code, map memory and write files."""

MINIMUM_REGION_BYTES = 1 << 20
"""The Python backend refuses a smaller shared-memory region per model instance."""


class TritonNotFoundError(RuntimeError):
    """There is no usable Triton server; the message says where we looked and what to do."""


@dataclass(frozen=True)
class TritonInstall:
    """A server binary, the backends that belong to it, and the libraries it needs."""

    binary: Path
    backends: Path
    library_paths: tuple[Path, ...]

    def command(
        self,
        settings: Settings,
        repository: Path,
        models: Sequence[str],
        header: str,
        region_prefix: str,
        grpc_address: str | None = None,
    ) -> list[str]:
        """The server's command line, program first; `serving.triton_arguments` come last and win.

        models         loaded at start, all others on request only (explicit model control)
        header         `name=value`, which opens the APIs in `RESTRICTED_APIS`
        region_prefix  begins the names of the Python backend's files in shared memory, which grow
                       when a tensor needs more
        grpc_address   where gRPC listens instead of `serving.address`: `unix:` and the beginning of
                       a socket's path, which ends with the port
        """
        serving, python = settings.serving, "--backend-config=python"
        restricted = ",".join(RESTRICTED_APIS)
        over_http = restricted if serving.http_inference else f"{restricted},inference"
        address = for_triton_http(serving.address)
        return [
            str(self.binary),
            f"--backend-directory={self.backends}",
            f"--model-repository={repository}",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in models),
            "--disable-auto-complete-config",
            "--exit-on-error=true",
            f"--http-address={address}",
            f"--http-port={serving.http_port}",
            f"--grpc-address={grpc_address or bracketed(serving.address)}",
            f"--grpc-port={serving.grpc_port}",
            f"--metrics-address={address}",
            f"--metrics-port={serving.metrics_port}",
            f"--http-restricted-api={over_http}:{header}",
            f"--grpc-restricted-protocol={restricted}:{header}",
            f"{python},shm-region-prefix-name={region_prefix}",
            f"{python},shm-default-byte-size={MINIMUM_REGION_BYTES}",
            "--log-info=false",
            f"--model-load-thread-count={len(models)}",
            *_without_gpu(settings),
            *_traced(settings.observability),
            *serving.triton_arguments,
        ]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The server's whole environment, built on `inherited`.

        The stub embeds a Python that takes its `sys.prefix` from the first `python3` on PATH, so
        the folder of the running interpreter (the virtual environment's `bin`) comes first.
        """
        environment = dict(inherited)
        environment["PATH"] = _joined(Path(sys.prefix, "bin"), environment.get("PATH"))
        for library_path in reversed(self.library_paths):
            environment["LD_LIBRARY_PATH"] = _joined(
                library_path, environment.get("LD_LIBRARY_PATH")
            )
        return environment


def http_address(serving: ServingSettings) -> str:
    """What the server binds for HTTP: its own option may keep that narrower than gRPC."""
    option = "--http-address="
    given = [a.removeprefix(option) for a in serving.triton_arguments if a.startswith(option)]
    return given[-1].removeprefix("ipv6:") if given else serving.address


def find_triton(
    runtime_directory: Path, named: Path | None = None, system_root: Path = SYSTEM_ROOT
) -> TritonInstall:
    """Locate the server: that of the binary which `serving.tritonserver` names, else a container's
    own, else that of the wheel.

    The wheel's Python backend is staged under `runtime_directory`, which must outlive the server.
    Raises `TritonNotFoundError`.
    """
    binary = named or system_root / "bin/tritonserver"
    if named is None and not binary.exists():
        return wheel_install(runtime_directory)
    root = binary.parent.parent
    install = TritonInstall(binary, root / "backends", library_paths=(root / "lib",))
    stub = install.backends / "python/triton_python_backend_stub"
    problem = None if stub.exists() else f"{stub} is missing"
    if named is not None and not (binary.is_file() and os.access(binary, os.X_OK)):
        problem = "it is no file that this user can execute"
    if problem is None:
        return install
    if named is None:
        raise TritonNotFoundError(
            f"no Triton server under {root}: {problem}; "
            "use a Triton container with the Python backend, or choose the wheel"
        )
    raise TritonNotFoundError(
        f"serving.tritonserver is {binary}: {problem}; it must be the server of an installation "
        f"with the Python backend, such as {SYSTEM_ROOT}/bin/tritonserver: correct it, or "
        "leave it out for the server that this environment has"
    )


def wheel_install(runtime_directory: Path, numpy: str | None = None) -> TritonInstall:
    """The server inside the installed `nvidia-pytriton` wheel. Its Python backend cannot read
    strings of NumPy 2; the backend of containers can since 24.11."""
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
    backend, backends = root / "backends/python", runtime_directory / "backends"
    staged = backends / "python"
    staged.mkdir(parents=True, exist_ok=True)
    for part in (backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub):
        link = staged / part.name
        link.unlink(missing_ok=True)
        link.symlink_to(part)
    libraries = package.parent / "nvidia_pytriton.libs"
    return TritonInstall(root / "bin/tritonserver", backends, (libraries, libpython.parent))


def _joined(first: Path, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else str(first)


def _without_gpu(settings: Settings) -> tuple[str, ...]:
    """Keeps the server from looking, and complaining, where no model asks for a GPU."""
    if any(getattr(settings, role).device != "cpu" for role in settings.roles):
        return ()
    return ("--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0")


def _traced(settings: ObservabilitySettings) -> tuple[str, ...]:
    """Options that make the server send OpenTelemetry traces, if they are wanted."""
    if settings.trace_url is None:
        return ()
    return (
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        f"--trace-config=rate={settings.trace_rate}",
        f"--trace-config=opentelemetry,url={settings.trace_url}",
        "--trace-config=opentelemetry,resource=service.name=card",
    )
