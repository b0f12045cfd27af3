"""What the OpenVINO engine keeps a GGUF file's matrices as under `dtype: auto`, line by line.

`openvino.weights` decides it by type, and for small matrices by their neighbours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from card.engines.processor import computes_in_bfloat16

_FOUR_BITS = "4 bits, the file's codes"
_WITH_MINIMA = f"{_FOUR_BITS}; as embedding, or in a small matrix, 8 bits"
_EIGHT_BITS = "8 bits, the file's numbers"
_ROUNDED = "8 bits, each weight moved by at most half a step"
KEPT_AS = {
    **dict.fromkeys(("Q4_0", "Q3_K"), _FOUR_BITS),
    **dict.fromkeys(("Q4_1", "Q4_K", "Q2_K"), _WITH_MINIMA),
    **dict.fromkeys(("Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"), _EIGHT_BITS),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q6_K"), _ROUNDED),
}
"""By GGUF's name of the type."""


def kept_lines(kinds: Mapping[str, str], layers: int) -> list[str]:
    """A line for each type: what the type is kept as, and which matrices have it.

    kinds  the type of each matrix by its name in the file
    """
    parts_of: defaultdict[str, Counter[str]] = defaultdict(Counter)
    in_layers = set()
    for name, kind in kinds.items():
        above, _, part = name.removesuffix(".weight").rpartition(".")
        parts_of[kind][part] += 1
        if above:
            in_layers.add(part)
    dense = "bfloat16" if computes_in_bfloat16() else "float32"
    lines = []
    for kind, parts in sorted(parts_of.items(), key=lambda known: -known[1].total()):
        named = ", ".join(
            f"{part} ({count} of {layers} layers)" if part in in_layers and count < layers else part
            for part, count in parts.items()
        )
        lines.append(f"{kind} is kept as {KEPT_AS.get(kind, dense)}: {named}")
    return lines
