"""Directories of models that hold a tokenizer and a chat template alone."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hé?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Why?"},
]
LLAMA = """\
{{ bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 1) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '<' ~ message.role ~ '>' ~ message.content | trim | tojson ~ eos_token }}
{%- endfor %}
    {% if add_generation_prompt %}
<assistant>
    {% endif %}"""


def tokenizer(*, adds_bos: bool) -> Tokenizer:
    words = Tokenizer(WordLevel({"<s>": 0, "</s>": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    if adds_bos:
        words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return words


def directory(folder: Path, *, adds_bos: bool = False, **config: object) -> Path:
    tokenizer(adds_bos=adds_bos).save(str(folder / "tokenizer.json"))
    content = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
