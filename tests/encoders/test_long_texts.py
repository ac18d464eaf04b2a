"""Of a long text only the start is tokenised, and it has the tokens of the whole text, for every kind of tokenizer."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexvl_anserini.encoders.parts import clip_bpe, tokens
from lexvl_anserini.encoders.parts.batches import PassageReader
from lexvl_anserini.encoders.parts.tokens import TextReader, load_tokenizer

BERT = "splade/ckpt_bert"

WORDS = ["a", "dog", "runs", "on", "the", "sandy", "beach", "and", "two", "children", "watch", "it", "red", "boat"]


def trained(kind: str) -> Any:
    """A small tokenizer of one kind, trained on a few words; `whole` takes a text as one word."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<unk>", "<pad>", "[MASK]"]
    # The pattern of tiktoken's vocabularies: runs of blanks with line ends, at most three digits.
    pattern = Regex(
        r"'(?:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "bytes")
    pieces = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), byte_level])
    bpe = (trainers.BpeTrainer, models.BPE)
    split, (trainer, model) = {
        "bytes": (byte_level, bpe),
        "tiktoken": (pieces, bpe),
        "unigram": (pre_tokenizers.Metaspace(), (trainers.UnigramTrainer, models.Unigram)),
        "whole": (pre_tokenizers.Metaspace(split=False), bpe),
        "words": (pre_tokenizers.Whitespace(), (trainers.WordLevelTrainer, models.WordLevel)),
    }[kind]
    tokenizer = Tokenizer(model() if model is models.Unigram else model(unk_token="<unk>"))
    tokenizer.pre_tokenizer = split
    if kind == "unigram":  # as ALBERT's and T5's
        blanks = normalizers.Replace(Regex(" {2,}"), " ")
        steps = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), blanks]
        tokenizer.normalizer = normalizers.Sequence(steps)
    options = {"unk_token": "<unk>"} if trainer is trainers.UnigramTrainer else {}
    tokenizer.train_from_iterator(
        [" ".join(WORDS)] * 3, trainer(vocab_size=300, special_tokens=special, show_progress=False, **options)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> $B:1 </s>:1", [("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", mask_token="[MASK]"
    )


# Words, and what may change or join them: marks, characters that normalisers remove, blanks, added tokens, entities.
UNITS = [
    *("a dog ", "beach ", "x", "\n", " ", "\t", "\u3000", "\r\n", "1", "word1", "é ", "e\u0301", "\u0301", "\u0327"),
    *("\u200b", "\x00", "\xad", "中", "日本 ", "ﬁ", "İ", "Σ", "ΑΣ ", "🙂"),
    *("[MASK]", "[MASK", "[SEP] ", "[UNK]", "</s>", "<"),
    *("&amp;", "&amp;amp;lt;", "&#00065;", "&#0", "Ã© ", "â€™s ", "don't ", "...", '"q" ', "<|endoftext|>", "<|"),
]
RUNS = st.lists(st.tuples(st.sampled_from(UNITS), st.sampled_from([1, 2, 3, 40, 130, 300])), min_size=1, max_size=8)


def written(runs: list[tuple[str, int]]) -> str:
    """Each unit so many times, and one pass more of all units without their repeats, so that words follow."""
    return "".join(unit * times for unit, times in runs) + "".join(unit for unit, _ in runs)


@pytest.fixture
def short_starts() -> Iterator[None]:
    """Starts of some dozen characters, so that small texts are long ones."""
    with mock.patch.multiple(tokens, FIRST_LENGTH=2, LONGER=2, MARGIN=64):
        yield


# The fixture changes nothing from example to example.
many = settings(max_examples=70, derandomize=True)


@cache
def kinds() -> dict[str, tuple[Any, Any]]:
    """A tokenizer of each kind twice: the second truncates whole texts itself."""
    golden = Path(__file__).parents[1] / "golden"
    own = {kind: (one := trained(kind), deepcopy(one)) for kind in ("bytes", "tiktoken", "unigram", "whole", "words")}
    wordpieces = load_tokenizer(golden / "splade/ckpt_bert"), load_tokenizer(golden / "splade/ckpt_bert")
    return {**own, "wordpieces": wordpieces}


@pytest.mark.parametrize("kind", ["bytes", "tiktoken", "unigram", "whole", "words", "wordpieces"])
@pytest.mark.usefixtures("short_starts")
@many
@given(runs=RUNS, length=st.integers(4, 9), specials=st.booleans(), prompt=st.sampled_from(["", "query: "]))
def test_a_long_text_has_the_tokens_of_the_whole_text(
    kind: str, runs: list[tuple[str, int]], length: int, specials: bool, prompt: str
) -> None:
    text = written(runs)
    tokenizer, whole = kinds()[kind]
    expected = whole(prompt + text, truncation=True, max_length=length, add_special_tokens=specials)["input_ids"]
    assert TextReader(tokenizer, length, specials=specials, prompt=prompt)([text]) == [expected]


def test_where_a_tokenizer_keeps_the_end_of_a_text() -> None:
    tokenizer, whole = map(deepcopy, kinds()["words"])
    tokenizer.truncation_side = whole.truncation_side = "left"
    text = "a dog " * 1000 + "on the beach"
    assert TextReader(tokenizer, 5)([text]) == whole([text], truncation=True, max_length=5)["input_ids"]


# The time and memory of the tokenizer's own truncation of a pair grow with the fourth power of its length.
SHORT_RUNS = st.lists(st.tuples(st.sampled_from(UNITS), st.sampled_from([1, 2, 30])), min_size=1, max_size=4)


@pytest.mark.usefixtures("short_starts")
@many
@given(first=SHORT_RUNS, second=SHORT_RUNS, length=st.integers(4, 9))
def test_a_long_pair_has_the_tokens_of_the_whole_pair(first: Any, second: Any, length: int) -> None:
    """DPR's passages: the longer of title and text is cut."""
    tokenizer, whole = kinds()["wordpieces"]
    title, text = written(first), written(second)
    expected = whole(title, text, truncation=True, max_length=length, return_token_type_ids=True)
    found = PassageReader(TextReader(tokenizer, length)).tokens((title, text))
    assert found == (expected["input_ids"], expected["token_type_ids"])


@pytest.mark.usefixtures("short_starts")
@many
@given(runs=RUNS, length=st.integers(3, 9), line=st.sampled_from([1_000_000, 700, 40]))
def test_a_long_caption_has_the_tokens_of_the_whole_caption(
    runs: list[tuple[str, int]], length: int, line: int
) -> None:
    """CLIP's tokens after ftfy, which repairs at most so many characters of a line at once."""
    text, bpe = written(runs), clip_tokens()
    with mock.patch.object(clip_bpe, "LONGEST_LINE", line):
        ids = bpe.model.encode(clip_bpe.clean(text), add_special_tokens=False).ids[: length - 2]
        assert bpe([text], length)["input_ids"] == [[bpe.ids[clip_bpe.START], *ids, bpe.ids[clip_bpe.END]]]


@cache
def clip_tokens() -> clip_bpe.ClipBpe:
    """Bytes and a few merges."""
    with NamedTemporaryFile("w", suffix=".txt") as merges:
        merges.write("#version: 0.2\nd o\ndo g</w>\nb e\n")
        merges.flush()
        return clip_bpe.ClipBpe(Path(merges.name))


@contextmanager
def lengths_read(tokenizer: Any) -> Iterator[list[int]]:
    """The lengths of the texts that a tokenizer gets."""
    own, seen = type(tokenizer).__call__, list[int]()

    def call(self: Any, given: list[str], **options: Any) -> Any:
        seen.extend(map(len, given))
        return own(self, given, **options)

    with mock.patch.object(type(tokenizer), "__call__", call):
        yield seen


@pytest.mark.parametrize("unit", ["a dog runs ", "dog\n", "狗", "dog,", '{"a":1}'])
def test_of_a_long_text_only_the_start_is_read(golden: Path, unit: str) -> None:
    """A text of a million characters, of which 64 tokens are read."""
    tokenizer = load_tokenizer(golden / BERT)
    with lengths_read(tokenizer) as seen:
        [ids] = TextReader(tokenizer, 64)([unit * (1_000_000 // len(unit))])
    assert len(ids) == 64 and max(seen) < 10_000


@pytest.mark.parametrize("kind", ["bytes", "unigram", "wordpieces"])
def test_of_one_long_word_so_many_characters_are_read(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A word of 20 MB was tokenised whole: 50 s and 1.7 GB."""
    tokenizer, whole = kinds()[kind]
    word = "beach" * 10_000
    tokens.log_once.cache_clear()
    caplog.set_level("INFO")
    with lengths_read(tokenizer) as seen, mock.patch.object(tokens, "MOST_READ", 8000):
        rows = TextReader(tokenizer, 16)([word, "a dog"])
    assert max(seen) == 8000 and "tokens are uncertain after 8,000 characters is cut there" in caplog.text
    assert rows == [whole(text, truncation=True, max_length=16)["input_ids"] for text in (word, "a dog")]
