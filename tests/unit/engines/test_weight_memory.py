"""Raw weights in a file: what the system need not hold, and what is read all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov

from card.engines.openvino.memory import WeightMemory

VALUES = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)


def resident_kib(address: int) -> int:
    """Of the mapping that holds an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= address < end
        elif inside and first == "Rss:":
            return int(line.split()[1])
    raise AssertionError("no mapping holds the address")


def test_what_is_unloaded_takes_no_memory_and_is_read_as_it_was() -> None:
    memory = WeightMemory()
    constants = [memory.constant(VALUES, ov.Type.f32, VALUES.shape) for _ in range(3)]
    address = constants[0].data.ctypes.data
    assert resident_kib(address) * 1024 >= 3 * VALUES.nbytes
    memory.unload()
    assert resident_kib(address) == 0
    for constant in constants:
        np.testing.assert_array_equal(constant.data, VALUES)
