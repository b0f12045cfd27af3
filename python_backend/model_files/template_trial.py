"""A chat template is a program that comes with the model: it is tried before it is used.

The trial runs in a process that can be killed, with bounds on time, memory and output. A template
that cannot be parsed, or breaks a bound, is not used at all: chats are refused with the reason, and
texts are completed without it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from model_files.interface import ModelFiles, ModelFilesError, special_tokens

CPU_S = 2
"""Seconds of processor time; a model's own template takes a hundredth of one."""
MEMORY_BYTES = 256 << 20
"""Addresses of the process."""
OUTPUT_CHARACTERS = 1 << 20
"""Of one conversation of two short messages."""
ANSWER_S = 30.0
"""Until the process must have ended, which a busy machine may delay."""

_CHILD = Path(__file__).with_name("template_child.py")
_START = (
    "import runpy, sys; sys.path += sys.argv[2:]; runpy.run_path(sys.argv[1], run_name='__main__')"
)
"""An interpreter without site packages starts sooner; the library's folders are named to it."""


@dataclass(frozen=True)
class Trial:
    """What became of a template.

    problem     why no chat can use it; "" if chats can
    refusal     why it refuses a conversation of one question; "" if it does not
    answer_end  what it writes behind an answer; "" if it writes nothing or fails
    """

    problem: str = ""
    refusal: str = ""
    answer_end: str = ""


def try_template(files: ModelFiles) -> Trial | None:
    """The trial of the model's chat template; None: the model brings none. A process tries a
    template once. Raises `ModelFilesError` where the files cannot be read."""
    source = files.chat_template()
    if source is None:
        return None
    return _tried(source, tuple(sorted(special_tokens(files.tokenizer_config()).items())))


@lru_cache(maxsize=8)
def _tried(source: str, tokens: tuple[tuple[str, str], ...]) -> Trial:
    asked = {
        "source": source,
        "tokens": dict(tokens),
        "cpu_s": CPU_S,
        "memory_bytes": MEMORY_BYTES,
        "output_characters": OUTPUT_CHARACTERS,
    }
    try:
        ended = subprocess.run(
            [_interpreter(), "-I", "-S", "-c", _START, str(_CHILD), *_library_folders()],
            input=json.dumps(asked).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Trial(f"it does not end within {ANSWER_S:g} s")
    except OSError as error:
        return Trial(f"it cannot be tried, because no process can be started: {error}")
    if ended.returncode == -signal.SIGXCPU:
        return Trial(f"it computes for more than {CPU_S} s")
    if ended.returncode != 0:
        return Trial(f"it breaks the process that tries it (exit code {ended.returncode})")
    return Trial(**json.loads(ended.stdout))


def _interpreter() -> str:
    """Inside Triton's stub `sys.executable` is not a Python interpreter."""
    return str(Path(sys.prefix, "bin/python3"))


def _library_folders() -> list[str]:
    """Where Jinja and what it imports are installed. Raises `ModelFilesError`."""
    found = [find_spec(name) for name in ("jinja2", "markupsafe")]
    folders = [Path(it.origin).parent.parent for it in found if it is not None and it.origin]
    if len(folders) < len(found):
        raise ModelFilesError("jinja2 is not installed: chat templates cannot be tried")
    return list(dict.fromkeys(map(str, folders)))
