"""CLIP's byte-level BPE from its merges file, as OpenAI's, DeCLIP's and FDT's code number it.

Token ids: 256 bytes, the same 256 at the end of a word, one id per merge, then the special symbols. DeCLIP and FDT have
<|mask|> before <|startoftext|> and <|endoftext|>, so their ids differ from OpenAI's.
"""

from __future__ import annotations

import gzip
import html
import re
import zlib
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lexvl_anserini.encoders.parts.tokens import starts
from lexvl_anserini.ground.errors import CheckpointError, describe_error

START, END, MASK = "<|startoftext|>", "<|endoftext|>", "<|mask|>"
# Those of DeCLIP and FDT.
SPECIALS = (MASK, START, END)

# The first line of the file is a header; lines after this number are not used.
LAST_LINE = 49152 - 256 - 2 + 1
# The limit of the unpacked file; OpenAI's, the longest, has 3.2 MB.
MOST_BYTES = 1 << 26

# Characters of a line that ftfy repairs at once; its own default.
LONGEST_LINE = 1_000_000

# Pieces of a text: contractions, words, single digits, and everything else that is not white space. Special symbols in
# a text are found before.
PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


# A printable character for each byte, in the order of their token ids.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_SYMBOLS = [*map(chr, PRINTABLE), *map(chr, range(256, 512 - len(PRINTABLE)))]


def read_merges(path: Path) -> list[str]:
    """The lines of a merges file, plain or gzipped; the last is empty if the file ends in a newline."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else open(path, "rb") as lines:
            text = lines.read(MOST_BYTES + 1).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as BPE merges ({describe_error(error)})") from error
    if len(text) > MOST_BYTES:
        raise CheckpointError(f"{path}: more than {MOST_BYTES} characters, expected BPE merges")
    return text.split("\n")[1:LAST_LINE]


def clean(text: str) -> str:
    """Repairs encodings, decodes HTML entities (twice, as in the references), joins blanks, lower-cases."""
    return normalise_text(repair_text(text))


def repair_text(text: str) -> str:
    """A text with its encoding repaired, line by line."""
    import ftfy

    return ftfy.fix_text(text, max_decode_length=LONGEST_LINE)


def normalise_text(text: str) -> str:
    """A text of repaired encoding, without entities, with single blanks, in lower case."""
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip().lower()


def clean_start(text: str, length: int) -> str:
    """About `length` characters of the start of the cleaned text, of whole lines; all of it if it is not longer."""
    end = 0
    while end < min(length, len(text)):
        line = text.find("\n", end, end + LONGEST_LINE) + 1
        end = line or min(end + LONGEST_LINE, len(text))
    fixed = repair_text(text[:end])
    if end < len(text):  # no entity contains a blank
        fixed = fixed[: max(fixed.rfind(" "), fixed.rfind("\n"), 0)]
    cleaned = normalise_text(fixed)
    return cleaned if len(text) <= length else cleaned[:length]


class ClipBpe:
    """Texts to token ids, with the interface of a tokenizer that `TextReader` uses; START and END are among `specials`.

    The references count the empty line after a final newline as one more merge; this class does so if and only if the
    model's embedding matrix has that many rows (`size`).
    """

    pad_token_id = 0

    def __init__(self, path: Path, specials: Sequence[str] = (START, END), size: int | None = None):
        lines = read_merges(path)
        bytes_and_specials = 512 + len(specials)
        if lines and not lines[-1].strip() and bytes_and_specials + len(lines) != size:
            lines.pop()
        merges = [tuple(line.split()) for line in lines]
        for number, merge in enumerate(merges, start=2):
            if len(merge) != 2 and not (number == len(merges) + 1 and not merge):
                raise CheckpointError(f"{path} line {number}: {lines[number - 2][:40]!r}, expected two symbols")
        terms = [*BYTE_SYMBOLS, *(f"{symbol}</w>" for symbol in BYTE_SYMBOLS), *map("".join, merges), *specials]
        if size is not None and len(terms) != size:
            raise CheckpointError(f"{path}: {len(terms)} tokens, the model has {size}; name the model's own merges")
        self.path, self.all_special_tokens = path, tuple(specials)
        self.ids = {term: number for number, term in enumerate(terms)}
        self.merges = [(merge[0], merge[1]) for merge in merges if merge]
        self.size = len(terms)

    def __len__(self) -> int:
        return self.size

    def get_vocab(self) -> dict[str, int]:
        """Term -> token id."""
        return self.ids

    def num_special_tokens_to_add(self) -> int:
        """START and END."""
        return 2

    @cached_property
    def model(self) -> Any:
        """The BPE model of the library `tokenizers`."""
        from tokenizers import AddedToken, Regex, Tokenizer
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

        affixes = {"end_of_word_suffix": "</w>", "continuing_subword_prefix": ""}
        model = Tokenizer(BPE(vocab=self.ids, merges=self.merges, **affixes))
        pieces = Split(Regex(PIECES), behavior="removed", invert=True)
        model.pre_tokenizer = Sequence([pieces, ByteLevel(add_prefix_space=False, use_regex=False)])
        model.add_special_tokens([AddedToken(special, normalized=False) for special in self.all_special_tokens])
        return model

    def __call__(
        self, texts: Sequence[str], max_length: int, add_special_tokens: bool = True, **ignored: Any
    ) -> dict[str, list[list[int]]]:
        """START, the text's tokens, END; of a longer text the first `max_length` - 1 ids and END."""
        encode = partial(self.model.encode_batch, add_special_tokens=False)
        tokens = encode(starts(texts, max_length, encode, clean_start))
        room = max_length - 2 if add_special_tokens else max_length
        start, end = ([self.ids[START]], [self.ids[END]]) if add_special_tokens else ([], [])
        return {"input_ids": [start + encoding.ids[:room] + end for encoding in tokens]}
