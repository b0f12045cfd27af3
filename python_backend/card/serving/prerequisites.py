"""What this machine must offer before anything starts.

Every check returns None if all is well, else one line that says what is wrong and what to do.

`scripts/setup` runs this file as a program before anything is installed, with an interpreter that
may be too old: so only the standard library is used and the syntax stays plain.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

OLDEST_PYTHON = (3, 10)
NEWEST_PYTHON = (3, 12)

OLDEST_GLIBC = (2, 35)
"""The server's wheel is built against Ubuntu 22.04."""

INSTALLED_BYTES = 3 << 30
"""What the environment takes at least, with the CPU build of PyTorch."""

MOST_FILES, FEW_FILES = 65_536, 4_096
"""Files and connections that a process wants, and below which silent connections fill it: where
Triton has no descriptor to spare, it takes no connection at all."""


def shared_libpython() -> Path | None:
    """The shared library of the running interpreter, or None if it has none.

    `sysconfig` may name a folder of the machine that built the interpreter, hence the others.
    """
    name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
    library = os.path.join(sys.base_prefix, "lib")
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = (sysconfig.get_config_var("LIBDIR"), library, os.path.join(library, multiarch))
    for folder in folders:
        if folder and os.path.exists(os.path.join(folder, name)):
            return Path(folder, name)
    return None


def check_architecture() -> str | None:
    """Linux on x86-64 with a recent glibc, which is what the server is built for."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        return (
            f"this machine is {system} on {machine}: the Triton server runs on Linux on x86-64 "
            "only; use such a machine or container"
        )
    library, version = platform.libc_ver()
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if library != "glibc" or number < OLDEST_GLIBC:
        return (
            f"the C library is {library or 'not glibc'} {version}: the Triton server needs glibc "
            f"{_dotted(OLDEST_GLIBC)} or newer; use Debian 12, Ubuntu 22.04 or later"
        )
    return None


def check_interpreter() -> str | None:
    """CPython 3.10 to 3.12 with a shared libpython, `venv` and `ensurepip`."""
    name = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    version = tuple(sys.version_info[:2])
    if platform.python_implementation() != "CPython" or not (
        OLDEST_PYTHON <= version <= NEWEST_PYTHON
    ):
        return (
            f"{name} is not supported: install CPython {_dotted(OLDEST_PYTHON)} to "
            f"{_dotted(NEWEST_PYTHON)} and set PYTHON to its path"
        )
    if shared_libpython() is None:
        return (
            f"{name} has no shared libpython, which Triton's Python backend needs: run "
            f"'apt-get install libpython{_dotted(version)}', or build Python with --enable-shared"
        )
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            return (
                f"{name} has no module {module}: run "
                f"'apt-get install python{_dotted(version)}-venv'"
            )
    return None


def check_disk(folder: Path, needed_bytes: int = INSTALLED_BYTES) -> str | None:
    """Room for what will be installed into `folder`, which exists."""
    free = shutil.disk_usage(folder).free
    if free >= needed_bytes:
        return None
    return f"{folder} has {_mib(free)} free, {_mib(needed_bytes)} are needed: make room there"


def check_numpy(version: str | None = None) -> str | None:
    """NumPy below 2. With NumPy 2 the Python backend of the server's wheel silently corrupts string
    tensors.

    `version` is the installed one unless given.
    """
    if version is None:
        try:
            version = importlib.metadata.version("numpy")
        except importlib.metadata.PackageNotFoundError:
            return "NumPy is not installed in this environment: run scripts/setup"
    if int(version.split(".")[0]) < 2:
        return None
    return (
        f"NumPy {version} is installed, but with NumPy 2 this Triton's Python backend silently "
        "corrupts string tensors: run scripts/setup again, or pip install 'numpy<2'"
    )


def check_ports(ports: Mapping[str, int], address: str = "0.0.0.0") -> str | None:
    """Each port is free to listen on at `address`; keys are the options that choose them."""
    owners: dict[int, str] = {}
    for option, port in ports.items():
        if not 1 <= port <= 65535:
            return f"{option} is {port}: choose a port from 1 to 65535"
        if port in owners:
            return f"{owners[port]} and {option} are both {port}: choose two different ports"
        owners[port] = option
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            socket.create_server(
                (address, port), family=family, dualstack_ipv6=address == "::"
            ).close()
        except ValueError:
            return f"{option}: this machine has no IPv6, which the address {address} needs"
        except OSError as error:
            return f"{option}: {_why_not_bound(error, address, port)}"
    return None


def raise_limit(most: int = MOST_FILES) -> int:
    """Let this process, and those that it starts, open up to `most` files, as far as that is
    allowed (shells allow 1,024); returns how many it may open now."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = min(most, hard)
    if soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    return wanted


def check_ascii(folder: Path) -> str | None:
    """Triton's own Python can import programs from this folder."""
    if str(folder).isascii():
        return None
    return (
        f"{folder} has letters in its name that the Python inside Triton cannot read: put it where "
        "the whole path is ASCII"
    )


def check_shell_proof(folder: Path, field: str) -> str | None:
    """A shell and a URI take this path as it is: Triton's Python backend hands paths to a shell
    unquoted, and gRPC reads a socket's path as part of a URI.

    `field` of the settings names it.
    """
    if re.fullmatch(r"[\w@+=:./-]+", str(folder), re.ASCII):
        return None
    return (
        f"{field} is {str(folder)!r}, which a shell or gRPC would not read "
        "as it is: choose a folder of letters, digits and _ @ + = : . / - alone, such as /dev/shm"
    )


def check_shared_memory(folder: Path, needed_bytes: int, field: str | None = None) -> str | None:
    """`folder` can be written and has room for `needed_bytes`.

    `field` of the settings names another one.
    """
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        remedy = "mount a tmpfs there"
        if field is not None:
            remedy = f"set {field} to one, best a tmpfs such as /dev/shm, or {remedy}"
        return f"shared memory {folder} is no folder that this user can write: {remedy}"
    free = shutil.disk_usage(folder).free
    if free >= needed_bytes:
        return None
    remedy = f"set {field} to a folder with more room, " if field is not None else ""
    return (
        f"shared memory {folder} has {_mib(free)} free, {_mib(needed_bytes)} are needed: {remedy}"
        "start the container with --shm-size=1g, "
        f"or enlarge it with 'mount -o remount,size=1G {folder}'"
    )


def _why_not_bound(error: OSError, address: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is busy: stop the program that listens there, or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} is reserved for the superuser: choose a port above 1023"
    return f"cannot listen on {address}, port {port} ({error}): choose an address of this machine"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"


def main() -> int:
    """Check the running interpreter and the machine; print the problem, or which Python this is.

    With `--room` check that what is to be installed finds room here.
    """
    problem = check_architecture() or check_interpreter() or check_ascii(Path.cwd())
    if problem is None and "--room" in sys.argv:
        problem = check_disk(Path.cwd())
    print(problem or f"CPython {platform.python_version()} in {sys.base_prefix}")
    return 2 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
