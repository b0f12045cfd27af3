"""A GGUF file's tokenizer makes the tokens that `transformers` makes of the file."""

from __future__ import annotations

from collections.abc import Callable
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

from model_files import ModelFilesError, model_files_of
from model_files.gguf.pre_tokenizers import PRE_TOKENIZERS

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


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_cuts_as_in_transformers(tmp_path: Path, name: str) -> None:
    tokens, kinds, merges = byte_level_tokens()
    end = tokens.index("<|im_end|>")
    metadata = gguf_models.with_tokens(
        tokens, kinds, pre=name, merges=merges, eos_token_id=end, add_bos_token=False
    )
    described(tmp_path / "model.gguf", "llama", metadata)
    assert_alike(tmp_path / "model.gguf")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("switch", ["add_bos_token", "add_eos_token", None])
def test_every_family_begins_prompts_as_in_transformers(
    tmp_path: Path, family: str, switch: str | None
) -> None:
    tokens, kinds, merges = byte_level_tokens()
    switches: dict[str, Any] = {} if switch is None else {switch: True}
    metadata = gguf_models.with_tokens(
        tokens,
        kinds,
        pre="qwen2",
        merges=merges,
        bos_token_id=tokens.index("<|im_start|>"),
        eos_token_id=tokens.index("<|im_end|>"),
        padding_token_id=tokens.index("[PAD]"),
        **switches,
    )
    described(tmp_path / "model.gguf", family, metadata)
    assert_alike(tmp_path / "model.gguf")


@pytest.mark.parametrize("adds", [None, True, False])
@pytest.mark.parametrize("spaced", [None, True, False])
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
