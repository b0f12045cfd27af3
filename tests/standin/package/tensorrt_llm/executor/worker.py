"""The worker process: loads the model, then runs the executor's loop until the caller is gone."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    id: int
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    streaming: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    client_id: int


def work(args: TorchLlmArgs, connection: Connection) -> None:
    from tensorrt_llm._torch.pyexecutor.model_engine import ModelEngine
    from tensorrt_llm._torch.pyexecutor.py_executor import PyExecutor

    messages: queue.Queue[object] = queue.Queue()
    try:
        executor = PyExecutor(args, ModelEngine(args), messages, connection.send)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    threading.Thread(target=_read, args=(connection, messages), daemon=True).start()
    try:
        executor.loop()
    except BaseException:
        # Nothing catches what the drafter raises: the loop that decodes every request ends.
        traceback.print_exc()
        os._exit(1)


def _read(connection: Connection, messages: queue.Queue[object]) -> None:
    while True:
        try:
            messages.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)  # as MPI ends the workers of a process that died
