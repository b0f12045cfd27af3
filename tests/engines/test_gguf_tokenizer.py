"""A GGUF file's tokenizer makes the model's own tokens.

What the names of ``tokenizer.ggml.pre`` say is compared with llama.cpp, everything else with
`transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_models
import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer

from card.settings import REPOSITORY_ROOT
from model_files import ModelFilesError, model_at, model_files_of
from model_files.gguf.files import GgufFiles
from model_files.gguf.header import read_header
from model_files.gguf.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer

TEXTS = [
    "",
    " ",
    "The quick brown fox doesn't jump over THE lazy dog's back.",
    "  two  spaces   three\t\ttabs\n\n\n  newlines \r\n end  ",
    "1 12 123 1234 12345.678 3rd v2.0 ١٢٣ ½",
    "  12 and    7",
    "def f(x):\n    return x**2  # naïve café ÅÄÖ\n",
    "日本語のテキストと中文，以及한국어。",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u200b\u00a0\ufeff x\x00y\x7f",
    "Привет мир! שלום مرحبا",
    "word<|im_start|>word<|im_end|> <|im_start|> x<think>y</think>",
    "a<think>b <|im_end|><|im_end|> <s>x</s><unk> <tool>t <0x0A> ▁▁ _",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "I'LL we'Ve THEY'RE it's HelloWorld camelCase ABCdef Ǆ ǅ",
    "https://example.org/a?b=c&d=%20 ===!!! --- ... ///",
]
CORPUS = [text for text in TEXTS if "<" not in text] * 3


def byte_level_tokens() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and merges of a vocabulary that knows some words."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = BpeTrainer(vocab_size=500, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = gguf_models.bpe_of(tokenizer)
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    added = [
        ("<|im_start|>", 3),
        ("<|im_end|>", 3),
        ("<think>", 4),
        ("</think>", 4),
        ("<|with space here|>", 4),
        ("<|fim▁begin|>", 3),
        ("[PAD]", 5),
    ]
    return (
        words + [token for token, _ in added],
        [1] * len(words) + [kind for _, kind in added],
        [" ".join(merge) for merge in model["merges"]],
    )


def sentencepiece_tokens() -> tuple[list[str], list[int], list[float]]:
    words = ["▁", "▁▁", "▁▁▁▁", *"theTquickords1"]
    words += ["2", "he", "the", "▁t", "▁the", "qu", "ick", "ic", "quick", "▁quick", "or", "ord"]
    words += ["12", "日", "本", "日本", "é", "'", "s's", "'s"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokens += ["<tool>", "<|im_end|>"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(words), 4, 3]
    scores = [0.0] * 259 + [-float(len(words) - len(word) * 3) for word in words] + [0.0, 0.0]
    return tokens, kinds, scores


def described(file: Path, family: str, metadata: Callable[[GGUFWriter], None]) -> None:
    """Write a file with a tokenizer; its model is of no interest."""
    gguf_models.write(file, family, "F16", metadata=metadata)


def assert_alike(file: Path) -> None:
    ours = model_files_of(file).tokenizer()
    first = ours.get_added_tokens_decoder().get(ours.encode("x").ids[0])
    assert model_files_of(file).leading_token() == (first.content if first else "")
    theirs = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text).ids == ids, text
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(
            text, add_special_tokens=False
        )
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


LLAMA_CPP = json.loads(
    (Path(__file__).parent / "llama_cpp_ids/ids.json").read_text(encoding="utf-8")
)
"""What `llama_cpp_ids/make_ids.py` found."""
IDS = {name: group["ids"] for group in LLAMA_CPP["ids"] for name in group["names"]}
MARKED = next(text for text in LLAMA_CPP["texts"] if "e\u0301" in text)
KNOWS_MARKS = ("gpt-4o", "kanana2", "llama4", "tekken")
"""Names under which llama.cpp cuts before a mark and the models do not."""
CHAT_TARGET = model_at(REPOSITORY_ROOT / "models/target")


def edited_chat_target(**changes: object) -> GgufFiles:
    """The chat target with other metadata of its tokenizer; None takes a field away."""
    header = read_header(CHAT_TARGET)
    metadata = header.metadata | {f"tokenizer.ggml.{key}": it for key, it in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return GgufFiles(CHAT_TARGET, replace(header, metadata=metadata))


def with_words_of_llama_cpp(name: str | None) -> GgufFiles:
    """The chat target as `make_ids.py` writes it."""
    metadata = read_header(CHAT_TARGET).metadata
    tokens, kinds, merges = (
        metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges")
    )
    known, more = set(merges), LLAMA_CPP["tokens"]
    return edited_chat_target(
        pre=name,
        tokens=[*tokens, *more],
        token_type=[*kinds, *[1] * len(more)],
        merges=[*merges, *(merge for merge in LLAMA_CPP["merges"] if merge not in known)],
        add_bos_token=None,
    )


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_makes_the_tokens_of_llama_cpp(name: str) -> None:
    tokenizer = with_words_of_llama_cpp(name).tokenizer()
    for text, ids in zip(LLAMA_CPP["texts"], IDS[name], strict=True):
        if text != MARKED or name not in KNOWS_MARKS:
            assert tokenizer.encode(text).ids == ids, text


@pytest.mark.parametrize("name", KNOWS_MARKS)
def test_marks_belong_to_their_word_where_the_models_say_so(name: str) -> None:
    cut = pre_tokenizer(PRE_TOKENIZERS[name]).pre_tokenize_str("हिन्दी e\u0301te\u0301")
    assert [place for _, place in cut] == [(0, 6), (6, 12)]


def test_the_chat_draft_cuts_as_its_target_does() -> None:
    target = model_files_of(CHAT_TARGET).tokenizer()
    draft = model_files_of(REPOSITORY_ROOT / "models/draft").tokenizer()
    for text in LLAMA_CPP["texts"]:
        assert draft.encode(text).ids == target.encode(text).ids, text


def test_llama_3_begins_with_bos_and_takes_whole_words() -> None:
    files = with_words_of_llama_cpp("llama-bpe")
    assert files.tokenizer().encode("in Việt Nam").ids == [1, 254, 49152, 18620]
    assert files.leading_token() == "<|im_start|>"
    told = replace(
        files,
        header=replace(
            files.header,
            metadata=files.header.metadata | {"tokenizer.ggml.add_bos_token": False},
        ),
    )
    assert told.tokenizer().encode("in").ids == [254]


def test_a_file_without_the_field_is_cut_as_by_gpt_2_and_says_so() -> None:
    unnamed, named = with_words_of_llama_cpp(None), with_words_of_llama_cpp("gpt-2")
    cutting, expected = unnamed.tokenizer(), named.tokenizer()
    for text in LLAMA_CPP["texts"]:
        assert cutting.encode(text).ids == expected.encode(text).ids
    (warning,) = unnamed.warnings()
    assert "tokenizer.ggml.pre" in warning
    assert named.warnings() == []


@pytest.mark.parametrize("adds", [None, True, False])
@pytest.mark.parametrize("spaced", [None, True])
def test_sentencepiece_makes_the_tokens_of_transformers(
    tmp_path: Path, adds: bool | None, spaced: bool | None
) -> None:
    tokens, kinds, scores = sentencepiece_tokens()
    switches: dict[str, Any] = {"add_bos_token": adds, "add_space_prefix": spaced}
    metadata = gguf_models.with_tokens(
        tokens,
        kinds,
        model="llama",
        pre=None,
        scores=scores,
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        **{name: value for name, value in switches.items() if value is not None},
    )
    described(tmp_path / "model.gguf", "llama", metadata)
    assert_alike(tmp_path / "model.gguf")
    begins = model_files_of(tmp_path / "model.gguf").tokenizer().encode("x").ids[0] == 1
    assert begins == (adds is not False)


def test_a_token_that_the_model_does_not_have_is_never_made(tmp_path: Path) -> None:
    tokens, kinds, merges = byte_level_tokens()
    file = tmp_path / "model.gguf"
    described(file, "llama", gguf_models.with_tokens(tokens, kinds, merges=merges))
    ours = model_files_of(file).tokenizer()
    assert max(ours.encode("<|endoftext|><|with space here|>").ids) < len(tokens)
    assert ours.get_vocab_size() == len(tokens)


def test_template_special_tokens_and_ends_are_those_of_the_file(tmp_path: Path) -> None:
    tokens, kinds, merges = byte_level_tokens()
    start, end = tokens.index("<|im_start|>"), tokens.index("<|im_end|>")
    file = tmp_path / "model.gguf"
    metadata = gguf_models.with_tokens(
        tokens,
        kinds,
        merges=merges,
        bos_token_id=start,
        eos_token_id=end,
        eot_token_id=start,
        chat_template="{{ messages }}",
    )
    described(file, "llama", metadata)
    files = model_files_of(file)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file=file.name)
    assert files.chat_template() == theirs.chat_template == "{{ messages }}"
    assert files.tokenizer_config() == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert files.generation_config() == {"eos_token_id": [end, start]}
    assert files.config()["eos_token_id"] == end


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pre": "bloom"}, "tokenizer.ggml.pre 'bloom' is not supported; allowed: dbrx, .*, trill"),
        ({"model": "t5"}, "tokenizer.ggml.model 't5' is not supported; allowed: gpt2, llama"),
        ({"merges": ["a b c"]}, "'a b c' in tokenizer.ggml.merges is no pair"),
        ({"merges": ["a zz"]}, "holds no sound tokenizer"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"model": "llama", "merges": None}, "tokenizer.ggml.scores is missing"),
        ({"bos_token_id": 99}, "tokenizer.ggml.bos_token_id is 99; allowed: ids of tokens, 0 to 2"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1; allowed: true or false"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    file = tmp_path / "model.gguf"
    about: dict[str, Any] = {"merges": ["a b"], **changes}
    metadata = gguf_models.with_tokens(["a", "b", "ab"], [1, 1, 1], **about)
    described(file, "llama", metadata)
    with pytest.raises(ModelFilesError, match=said) as refusal:
        model_files_of(file).tokenizer()
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)
