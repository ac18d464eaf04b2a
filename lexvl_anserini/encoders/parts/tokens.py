"""Texts to token ids, and the dimension of the vocabulary that each token id has.

A long text is cut where a reader of so many tokens stops (`starts`), so that its time and memory do not grow with the
text. A tokenizer splits a text into words (pieces that it encodes one by one), and what it splits and changes depends
on characters nearby. The start of a text therefore has the same words as the whole text, but for those near the cut.
How far a word reaches is unknown before it ends, so the last word before the cut does not count either. Of a text whose
first tokens are still uncertain after `MOST_READ` characters, these characters are read and no more.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Never

import numpy as np

from lexvl_anserini.data.lines import log_once
from lexvl_anserini.encoders.checkpoints.find import TOKENIZER_FILES, has_tokenizer
from lexvl_anserini.ground.errors import CheckpointError, UsageError, describe_error
from lexvl_anserini.ground.files import read_json
from lexvl_anserini.ground.records import Vocabulary, name_token

# In BERT's uncased vocabulary id 999 is "!": everything below is [PAD], [UNK], [CLS], [SEP], [MASK] and [unused].
FIRST_WORD_ID = 999

# How many times as long a text may become before its words are read: NFKC makes 18 characters of one.
MOST_GROWTH = 128

# A text with a character that no vocabulary has.
UNUSUAL = "a \u2603\U0010fffd"


def load_tokenizer(folder: Path, size: int | None = None) -> Any:
    """Loads a fast tokenizer from a folder and checks that it has `size` tokens, the rows of its model's embeddings."""
    import transformers

    if not has_tokenizer(folder):
        files = ", ".join(TOKENIZER_FILES[:3])
        raise CheckpointError(f"{folder}: no tokenizer ({files}); name a folder that has one with --tokenizer")
    try:
        path = folder / "tokenizer.json"
        content = read_json(path, "tokenizer", CheckpointError) if path.is_file() else {}
        if (growth := measure_growth(content.get("normalizer") or {})) > MOST_GROWTH:
            raise ValueError(f"its normalizer makes a text {growth:,.0f} times as long, expected at most {MOST_GROWTH}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), use_fast=True, local_files_only=True, trust_remote_code=False
        )
        tokenizer([UNUSUAL])  # a vocabulary that lacks its own unknown token fails only at a text that needs it
        last = max(tokenizer.get_vocab().values())
    except Exception as error:
        raise CheckpointError(f"{folder}: the tokenizer cannot be read ({describe_error(error)})") from error
    if last >= len(tokenizer):
        raise CheckpointError(f"{folder}: the tokenizer has {len(tokenizer)} tokens, and one of them has the id {last}")
    if size is not None and len(tokenizer) != size:
        refuse_size(folder, len(tokenizer), size)
    return tokenizer


def measure_growth(normalizer: Mapping[str, Any]) -> float:
    """How many times as long a text can become by a normalizer of `tokenizer.json`."""
    kind = normalizer["type"] if normalizer else ""
    if kind == "Sequence":
        return prod(map(measure_growth, normalizer["normalizers"]))
    if kind == "Replace":  # an expression may match between all characters
        pattern, content = normalizer["pattern"].get("String", ""), normalizer["content"]
        return max(1, len(content) / len(pattern)) if pattern else 1 + len(content)
    if kind == "Precompiled":  # the size of a trie, the trie, and the texts that it leads to
        raw = b64decode(normalizer["precompiled_charsmap"] or "")
        texts = raw[4 + int.from_bytes(raw[:4], "little") :].decode(errors="replace").split("\0")
        return max(1, *map(len, texts))
    return 1 + len(normalizer.get("prepend", ""))


def refuse_size(where: Path | str, tokens: int, size: int) -> Never:
    """Refuses a tokenizer of another size than its model's."""
    fits = "name the model's own with --tokenizer"
    raise CheckpointError(f"{where}: the tokenizer has {tokens} tokens, the model {size}; {fits}")


def add_lower_casing(tokenizer: Any) -> Any:
    """The tokenizer, changed to lower-case texts first unless it does so already (`do_lower_case` of older folders)."""
    from tokenizers.normalizers import Lowercase, Sequence

    normalizer, lower = tokenizer.backend_tokenizer.normalizer, Lowercase()
    if not (isinstance(normalizer, Lowercase) or getattr(normalizer, "lowercase", False)):
        tokenizer.backend_tokenizer.normalizer = lower if normalizer is None else Sequence([lower, normalizer])
    return tokenizer


def list_token_strings(tokenizer: Any) -> list[str]:
    """Token strings in the order of their ids, with other names for white space, which ModernBERT has as tokens."""
    return [name_token(token) for token in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]


def list_token_names(tokenizer: Any) -> dict[int, str]:
    """Token id -> what the token says, without marks of words' parts; special tokens have none."""
    specials = tokenizer.all_special_tokens
    return {number: term.removesuffix("</w>") for term, number in tokenizer.get_vocab().items() if term not in specials}


def find_first_word_id(tokenizer: Any) -> int:
    """999 in a vocabulary with the layout of BERT's uncased one, else 0."""
    return FIRST_WORD_ID if tokenizer.convert_tokens_to_ids("[unused993]") == FIRST_WORD_ID - 1 else 0


class OwnTokens(NamedTuple):
    """The own tokens of a text: their dimensions, int32 ascending, and how often each occurs, float32."""

    dims: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class TokenColumns:
    """The vocabulary, and the dimension there of each token id, int64 [|T|], -1 if it has none."""

    vocabulary: Vocabulary
    of_token: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """The token id of each dimension, int64 [V]."""
        ids = np.flatnonzero(self.of_token >= 0)
        if len(ids) < len(self.vocabulary):  # of `make_columns_without`: special tokens are dimensions too
            return np.arange(len(self.vocabulary))
        return ids[np.argsort(self.of_token[ids])]

    def without(self, token: int) -> TokenColumns:
        """The same dimensions, of which a token never counts as a text's own."""
        of_token = self.of_token.copy()
        of_token[token] = -1
        return replace(self, of_token=of_token)

    def count_own(self, ids: Sequence[Sequence[int]]) -> list[OwnTokens]:
        """Per text, the dimensions of its own tokens, and how often each occurs."""
        columns = (self.of_token[np.asarray(row, dtype=int)] for row in ids)
        rows = (np.unique(row[row >= 0], return_counts=True) for row in columns)
        return [OwnTokens(dims.astype(np.int32), counts.astype(np.float32)) for dims, counts in rows]

    def own(self, ids: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Per text, the ascending distinct dimensions of its own tokens."""
        return [row.dims for row in self.count_own(ids)]


def make_columns_from(tokenizer: Any, shift: int) -> TokenColumns:
    """Dimension j is token id j + shift (VDR)."""
    if not 0 <= shift < len(tokenizer):
        raise UsageError(f"shift {shift}: expected 0 to {len(tokenizer) - 1} for {len(tokenizer)} tokens")
    of_token = np.arange(len(tokenizer), dtype=np.int64) - shift
    of_token[:shift] = -1
    return TokenColumns(Vocabulary(list_token_strings(tokenizer)[shift:], "the tokenizer's vocabulary"), of_token)


def make_ascii_columns(tokenizer: Any, shift: int = FIRST_WORD_ID) -> TokenColumns:
    """Dimensions are the tokens from `shift` on that are pure ASCII, in order (VDR cross-modal)."""
    strings = list_token_strings(tokenizer)
    tokens = [token for token in range(shift, len(strings)) if strings[token].isascii()]
    of_token = np.full(len(strings), -1, dtype=np.int64)
    of_token[tokens] = np.arange(len(tokens))
    return TokenColumns(Vocabulary([strings[token] for token in tokens], "the tokenizer's vocabulary"), of_token)


def make_term_columns(tokenizer: Any, vocabulary: Vocabulary, where: str) -> TokenColumns:
    """Dimensions are the tokens that are the terms of a vocabulary, in its order."""
    ids = tokenizer.get_vocab()
    if missing := [term for term in vocabulary if term not in ids]:
        raise CheckpointError(f"{where}: {len(missing)} terms are no tokens of its tokenizer, such as {missing[0]!r}")
    of_token = np.full(len(tokenizer), -1, dtype=np.int64)
    of_token[[ids[term] for term in vocabulary]] = np.arange(len(vocabulary))
    return TokenColumns(vocabulary, of_token)


def make_columns_without(tokenizer: Any, specials: Sequence[int | None], further: Sequence[str] = ()) -> TokenColumns:
    """Every token id is its own dimension, then each of `further`; `specials` never count as a text's own tokens."""
    strings = [*list_token_strings(tokenizer), *further]
    of_token = np.arange(len(strings), dtype=np.int64)
    of_token[[token for token in specials if token is not None]] = -1
    return TokenColumns(Vocabulary(strings, "the tokenizer's vocabulary"), of_token)


def make_all_columns(tokenizer: Any, specials: bool = False, further: Sequence[str] = ()) -> TokenColumns:
    """All tokens are dimensions; [PAD] and, unless `specials`, [CLS] and [SEP] never count as a text's own."""
    left_out = [] if specials else [tokenizer.cls_token_id, tokenizer.sep_token_id]
    return make_columns_without(tokenizer, [tokenizer.pad_token_id, *left_out], further)


def is_fast(tokenizer: Any) -> bool:
    """True for tokenizers in Rust: their truncation and padding are a state of all threads, so texts are cut here."""
    return bool(getattr(tokenizer, "is_fast", False))


def encode_whole(tokenizer: Any, texts: Sequence[str]) -> Sequence[Any]:
    """Whole texts as `tokenizers.Encoding` of a fast tokenizer, without special tokens."""
    encodings: Sequence[Any] = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
    ).encodings
    return encodings


def read_starts(tokenizer: Any, texts: Sequence[str], tokens: int) -> list[str]:
    """The start of each text that has its first `tokens` tokens; whole texts where a tokenizer cuts their start."""
    if tokenizer.truncation_side != "right":
        return list(texts)
    return starts(texts, tokens, partial(encode_whole, tokenizer))


def keep_first(tokenizer: Any, ids: list[int], room: int) -> list[int]:
    """The first `room` token ids, or the last ones where the tokenizer cuts the start of a text."""
    return ids[:room] if tokenizer.truncation_side == "right" else ids[max(0, len(ids) - room) :]


class TokenPlace(NamedTuple):
    """A place in the order of a text's tokens: a special token, or all tokens of one part (0 or, of a pair, 1)."""

    token: int
    type: int
    part: int | None


def list_places(tokenizer: Any, parts: int) -> list[TokenPlace]:
    """Where a tokenizer puts its special tokens in a text (1 part) or a pair (2 parts)."""
    [token, *_] = tokenizer.all_special_tokens or ["a"]
    one_token_each = encode_whole(tokenizer, [token] * parts)
    done = tokenizer.backend_tokenizer.post_process(*one_token_each, add_special_tokens=True)
    order = count()
    rows = zip(done.ids, done.type_ids, done.special_tokens_mask, strict=True)
    return [TokenPlace(token, kind, None if special else next(order)) for token, kind, special in rows]


def place_parts(order: Sequence[TokenPlace], parts: Sequence[list[int]]) -> tuple[list[int], list[int]]:
    """Token ids and types of a text or a pair, with special tokens."""
    ids: list[int] = []
    types: list[int] = []
    for place in order:
        added = [place.token] if place.part is None else parts[place.part]
        ids += added
        types += [place.type] * len(added)
    return ids, types


@dataclass(frozen=True)
class TextReader:
    """Tokenises texts.

    Attributes:
        max_length: tokens kept, with special tokens.
        padding: "none": padding is ignored everywhere. "max_length": texts are padded to max_length, and padding
            positions count in pooling, as in training and evaluation of the published VDR checkpoints.
        specials: add [CLS] and [SEP].
        limit: the number of positions of the model; None for no limit.
    """

    tokenizer: Any
    max_length: int
    padding: str = "none"
    specials: bool = True
    limit: int | None = None
    prompt: str = ""

    def __post_init__(self) -> None:
        if self.padding not in ("none", "max_length"):
            raise UsageError(f"padding {self.padding!r} is not known; choose none or max_length")
        least = 1 + self.special_tokens
        if not least <= self.max_length <= (self.limit or self.max_length):
            most = f" and at most {self.limit}" if self.limit else ""
            raise UsageError(f"max_length {self.max_length}: this model reads at least {least}{most} tokens")
        if is_fast(self.tokenizer):  # drops the truncation and padding of the folder now, before threads share it
            encode_whole(self.tokenizer, [""])

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids per text, unpadded, truncated to `max_length`."""
        if not len(texts):
            return []
        texts = [self.prompt + text for text in texts]
        if not is_fast(self.tokenizer):  # tokenizers in Python keep nothing from call to call
            limits = {"truncation": True, "max_length": self.max_length, "add_special_tokens": self.specials}
            parts = {"return_attention_mask": False, "return_token_type_ids": False}
            rows: list[list[int]] = self.tokenizer(texts, **limits, **parts)["input_ids"]
            return rows
        room = self.max_length - self.special_tokens
        encodings = encode_whole(self.tokenizer, read_starts(self.tokenizer, texts, self.max_length))
        rows = [keep_first(self.tokenizer, encoding.ids, room) for encoding in encodings]
        return [place_parts(self.places, [row])[0] for row in rows] if self.special_tokens else rows

    @cached_property
    def places(self) -> list[TokenPlace]:
        """Where the special tokens go."""
        return list_places(self.tokenizer, 1)

    @property
    def special_tokens(self) -> int:
        """How many special tokens a text gets."""
        return int(self.tokenizer.num_special_tokens_to_add()) if self.specials else 0

    @property
    def pad_id(self) -> int:
        """Id of the padding token, 0 if the tokenizer has none."""
        return self.tokenizer.pad_token_id or 0

    def with_max_length(self, max_length: int | None) -> TextReader:
        """The same reader with another limit; None keeps this one."""
        return self if max_length is None else replace(self, max_length=max_length)


# Characters per token of a first start, and by what each further one is longer.
FIRST_LENGTH, LONGER = 16, 4

# Characters before a cut in which words may differ from the whole text's: no added token and no rule of a tokenizer
# reaches as far.
MARGIN = 1000

# Characters of a text that are read at most for its first tokens, where those of a reader need no more: tokenising one
# word of so many takes about 3 s and 90 MB.
MOST_READ = 1 << 20

# (text, length) -> about so many characters of its start, or the whole text if it is not longer.
Start = Callable[[str, int], str]


def starts(
    texts: Sequence[str],
    tokens: int,
    encode: Callable[[list[str]], Sequence[Any]],
    start: Start = lambda text, length: text[:length],
) -> list[str]:
    """The start of each text that has its first `tokens` tokens, or its first `MOST_READ` characters."""
    length = FIRST_LENGTH * tokens + MARGIN
    beginnings = [start(text, length) for text in texts]
    open_ends = [i for i, text in enumerate(texts) if len(text) > length]
    while open_ends:
        encodings = encode([beginnings[i] for i in open_ends])
        read = zip(open_ends, encodings, strict=True)
        open_ends = [i for i, encoding in read if not is_certain(encoding, beginnings[i], tokens)]
        if length >= MOST_READ:
            break
        length = min(LONGER * length, MOST_READ)
        for i in open_ends:
            beginnings[i] = start(texts[i], length)
        open_ends = [i for i in open_ends if len(texts[i]) > length]
    if open_ends:
        log_once(f"a text whose first {tokens} tokens are uncertain after {length:,} characters is cut there")
    return beginnings


def is_certain(encoding: Any, text: str, tokens: int) -> bool:
    """True if the first `tokens` tokens of `text`, the start of a longer one, are also the longer one's."""
    count = len(encoding)
    if count <= tokens:
        return False
    word = encoding.token_to_word(tokens - 1)
    # Rules about runs of blanks look at the end of the run.
    return word != encoding.token_to_word(count - 1) and encoding.word_to_chars(word)[1] <= len(text.rstrip()) - MARGIN
