"""Writes `ids.json`: what llama.cpp makes of texts, for every name of ``tokenizer.ggml.pre``.

Run it in the peer's environment, which `scripts/bench` installs, or in any other that has the
packages of ``requirements/peers-llama_cpp.txt``:

    .peers/llama_cpp/bin/python tests/engines/llama_cpp_ids/make_ids.py \\
        models/target/SmolLM2-135M-Instruct.Q4_1.gguf NAME...

For each name the script writes a file with the vocabulary of the model and that name in the field.
The file says nothing about the bos token. It has one word more, which no merges lead to, and merges
more across places where some name cuts and others do not: the model's own merges join no digits.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter
from llama_cpp import Llama  # type: ignore[import-not-found]

WORD = "ĠViá»ĩt"
"""" Việt" in the alphabet of bytes."""
MERGES = [
    *("1 2", "12 3", "123 4", "Ġ 1", "ĠĠ 1", "Ġ 5", "$ 5", "9 |", "0 %", "x 1", "3 r"),
    *("Ì ģ", "e Ìģ", "Ìģ t", "à¤ ¹", "à¤ ¿", "à¤¹ à¤¿"),
    *("l C", "P R", "e W", "Ð ľ", "ÑĤ Ðľ", "Ð ł", "Ðł Ð¿", "Ã ī", "Ãī l", "Ã Ħ", "Ã ĸ", "ÃĦ Ãĸ"),
    *("/ Ċ", "; Ċ", "/ b", "' S", "' L", "'L L", "b '", "Ġ Ċ", "Ċ Ġ"),
]
"""In the alphabet of bytes; those that the vocabulary has are left out."""
LEFT_OUT = ("general.architecture", "tokenizer.ggml.add_bos_token")
"""The writer adds the first by itself."""
TEXTS = [
    "",
    " ",
    "in  12 apples",
    "a = [\n    1,\n    22,\n    333,\n    4444,\n]\n",
    "| 12 |  34 |\n|  5 |   6 |\n|  7 |   8 |\n",
    "There are  12 apples and  7 pears.",
    "ports:\n  - 80\nreplicas:   3\nlimits:\n    cpu:    2\n    memory: 4\n",
    "1 12 123 1234 12345.678 3rd v2.0 x1y22z333 2026-11-29 00:59",
    "\t1\n\t\t22\r\n 333\n\n  4",
    "½ ² ٣٤٥ १२ Ⅷ ①②  ৩",
    "The quick brown fox doesn't jump over THE lazy dog's back.",
    "I'LL we'Ve THEY'RE it's HelloWorld camelCase ABCdef XMLHttpRequest iPhone",
    "'s 't're' ''' don''t \"it's\"  'Twas",
    "  two  spaces   three\t\ttabs\n\n\n  newlines \r\n end  ",
    "trailing spaces   ",
    "trailing lines \n \n\n",
    "https://example.org/a?b=c&d=%20 ===!!! --- ... /// a/b//c\n/d",
    "def f(x):\n    return x**2 + $y != ^z ~ |w| `v` <= >=  # naïve\n",
    "price: $5.00 + 10% <b>100</b> ~7 ^8 |9|",
    "日本語のテキストと中文，以及한국어。第3章",
    "Привет мир! שלום مرحبا",
    "in Việt Nam, Việt",
    "word<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "👩‍👩‍👧‍👦 🏳️‍🌈 \u200b\u00a0\ufeff x\u3000y \u2028z",
    "naïve café ÅÄÖ Élan ǅ ﬁ ß",
    "हिन्दी में e\u0301te\u0301 ไทย",
    "приветМИР МИРпривет ПРИВЕТ тМ",
]


def with_name(reader: GGUFReader, name: str, file: Path) -> list[str]:
    """Write a file of the same vocabulary without tensors; returns the tokens more."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merged = [merge.replace(" ", "") for merge in MERGES]
    more = [token for token in dict.fromkeys([WORD, *merged]) if token not in set(tokens)]
    writer = GGUFWriter(file, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in (
            "general.architecture",
            "tokenizer.ggml.add_bos_token",
        ):
            continue
        value, kind = field.contents(), field.types[0]
        if key == "tokenizer.ggml.pre":
            value = name
        elif key == "tokenizer.ggml.tokens":
            value = [*value, *more]
        elif key == "tokenizer.ggml.token_type":
            value = [*value, *[1] * len(more)]
        elif key == "tokenizer.ggml.merges":
            value = [*value, *(merge for merge in MERGES if merge not in set(value))]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, kind, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return more


def ids_of(file: Path, texts: list[str]) -> list[list[int]]:
    """llama.cpp's tokens of each text, with what it puts before a prompt."""
    model = Llama(str(file), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]


def main() -> None:
    """Write the file beside this one."""
    source, *names = sys.argv[1:]
    reader = GGUFReader(source)
    groups: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(names):
            file = Path(folder, "model.gguf")
            more = with_name(reader, name, file)
            groups.setdefault(json.dumps(ids_of(file, TEXTS)), []).append(name)
    content = {
        "made_with": f"llama-cpp-python {version('llama-cpp-python')}",
        "tokens": more,
        "merges": MERGES,
        "texts": TEXTS,
        "ids": [{"names": group, "ids": json.loads(ids)} for ids, group in groups.items()],
    }
    lines = json.dumps(content, ensure_ascii=True).replace("], [", "],\n[")
    Path(__file__).with_name("ids.json").write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
