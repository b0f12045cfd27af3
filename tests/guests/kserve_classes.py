"""Reads KServe's resources with KServe's own classes. Runs in `.venv-kserve`.

    python kserve_classes.py FILE...

Prints a line of JSON for each document: kind, name, and the paths of fields that KServe's classes
do not know. A class raises for a required field that is missing.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import kserve  # type: ignore[import-not-found]
import yaml

CLASSES = {
    "ClusterServingRuntime": "V1alpha1ClusterServingRuntime",
    "InferenceService": "V1beta1InferenceService",
}


def read(kind: str, value: Any, path: str) -> tuple[Any, list[str]]:
    """The object of a type as the classes name it, and the paths of unknown fields."""
    if listed := re.fullmatch(r"list\[(.+)\]", kind):
        both = [read(listed[1], one, f"{path}[{at}]") for at, one in enumerate(value)]
        return [made for made, _ in both], [found for _, unknown in both for found in unknown]
    if hasattr(kserve, kind):
        return _read_ours(getattr(kserve, kind), value, path)
    return value, []  # what is Kubernetes' own, tests/deploy checks against its schemas


def _read_ours(cls: Any, value: Any, path: str) -> tuple[Any, list[str]]:
    names = {written: name for name, written in cls.attribute_map.items()}
    unknown = [f"{path}.{written}" for written in value if written not in names]
    fields: dict[str, Any] = {}
    for written, part in value.items():
        if written in names:
            name = names[written]
            fields[name], below = read(cls.openapi_types[name], part, f"{path}.{written}")
            unknown += below
    return cls(**fields), unknown


def main() -> None:
    for file in sys.argv[1:]:
        with open(file, encoding="utf-8") as text:
            for document in yaml.safe_load_all(text):
                kind = document["kind"]
                _, unknown = read(CLASSES[kind], document, "")
                told = {"kind": kind, "name": document["metadata"]["name"], "unknown": unknown}
                print(json.dumps(told))


if __name__ == "__main__":
    main()
