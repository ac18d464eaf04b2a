"""A WordPiece vocabulary learned from the captions of a corpus, for models that start from random weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lexvl_anserini.errors import UsageError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Every printable ASCII character, alone and as the continuation of a word, so that any ASCII text has tokens.
_LETTERS = tuple(chr(code) for code in range(33, 127) if not chr(code).isupper())
CHARACTERS = (*_LETTERS, *(f"##{letter}" for letter in _LETTERS if letter.isalnum()))

# Training uses the dimensions from the first token after the special tokens on; the checkpoint keeps those from the
# first word on. The dimensions of characters are registers: a vector has unit length, and a text gives them the weight
# that its words do not need. As terms they would have no meaning.
FIRST_TOKEN_ID = len(SPECIALS)
FIRST_WORD_ID = FIRST_TOKEN_ID + len(CHARACTERS)


def learn_words(texts: Iterable[str], size: int, least: int = 2) -> list[str]:
    """The tokens of a vocabulary: special tokens, characters, their continuations, then words by descending frequency.

    Words of equal frequency are in alphabetical order, so the same captions always give the same vocabulary.

    Args:
        texts: captions to count.
        size: largest number of tokens.
        least: smallest number of occurrences of a word.

    Raises:
        UsageError: `size` has no room for a word, or no word occurs often enough.
    """
    from tokenizers import normalizers, pre_tokenizers

    normalise = normalizers.BertNormalizer(lowercase=True)
    split = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in split.pre_tokenize_str(normalise.normalize_str(text)))
    base = [*SPECIALS, *CHARACTERS]
    known = set(base)
    words = sorted(
        (word for word, count in counts.items() if count >= least and word.isascii() and word not in known),
        key=lambda word: (-counts[word], word),
    )
    if size <= len(base) or not words:
        raise UsageError(
            f"a vocabulary of {size} tokens from {len(words)} words seen at least {least} times: expected more than "
            f"{len(base)} tokens and at least one word"
        )
    return [*base, *words[: size - len(base)]]


def save_tokenizer(tokens: list[str], folder: Path, max_length: int) -> Any:
    """Writes an uncased BERT tokenizer with these tokens into a folder and returns it."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = {token: number for number, token in enumerate(tokens)}
    core = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    core.decoder = decoders.WordPiece()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(folder))
    return tokenizer
