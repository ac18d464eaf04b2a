"""The words of a corpus: a WordPiece vocabulary for fresh models, and terms for pretrained ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from lexvl_anserini.data.lines import load_function_words, read_words
from lexvl_anserini.encoders.checkpoints.find import find_checkpoint
from lexvl_anserini.encoders.parts.tokens import load_tokenizer
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import read_json_value

FOLDER = Path(__file__).parent / "assets"
# Words that name something, and that a model must not say of a picture: people's descent, and monkeys.
LEFT_OUT = FOLDER / "left-out-words.txt"
KINDS = FOLDER / "kinds-of-classes.txt"

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Every printable ASCII character, alone and as the continuation of a word, so that any ASCII text has tokens.
_LETTERS = tuple(chr(code) for code in range(33, 127) if not chr(code).isupper())
CHARACTERS = (*_LETTERS, *(f"##{letter}" for letter in _LETTERS if letter.isalnum()))

# Training uses the dimensions from the first token after the special tokens on; the checkpoint keeps those from the
# first word on. The dimensions of characters are registers: a vector has unit length, and a text gives them the weight
# that its words do not need. As terms they would have no meaning.
FIRST_TOKEN_ID = len(SPECIALS)
FIRST_WORD_ID = FIRST_TOKEN_ID + len(CHARACTERS)


# Texts, or how often each of their words occurs, where they are too many to be read twice.
Texts = Iterable[str] | Counter[str]


def count_words(texts: Texts) -> Counter[str]:
    """How often each word, as BERT's uncased tokenizer splits texts, occurs."""
    from tokenizers import normalizers, pre_tokenizers

    if isinstance(texts, Counter):
        return texts
    normalise = normalizers.BertNormalizer(lowercase=True)
    split = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in split.pre_tokenize_str(normalise.normalize_str(text)))
    return counts


def sort_by_frequency(counts: Counter[str], least: int) -> list[str]:
    """The ASCII words that occur at least so often, by descending frequency, then in alphabetical order."""
    words = (word for word, count in counts.items() if count >= least and word.isascii())
    return sorted(words, key=lambda word: (-counts[word], word))


def learn_words(texts: Texts, size: int, least: int = 2) -> list[str]:
    """Special tokens, characters, their continuations, then words by frequency, then by name."""
    base = [*SPECIALS, *CHARACTERS]
    known = set(base)
    words = [word for word in sort_by_frequency(count_words(texts), least) if word not in known]
    if size <= len(base) or not words:
        raise UsageError(f"{size} tokens, {len(words)} words: expected more than {len(base)} tokens, and a word")
    return [*base, *words[: size - len(base)]]


def learn_terms(texts: Texts, least: int) -> list[str]:
    """The terms of a pretrained model: words of letters that occur `least` times, by frequency; no function words."""
    words = [word for word in sort_by_frequency(count_words(texts), least) if names_something(word)]
    if not words:
        raise UsageError(f"no word but function words occurs at least {least} times in the captions")
    return words


def names_something(word: str) -> bool:
    """True for words of at least two letters that are no function words and not left out."""
    return len(word) > 1 and word.isalpha() and word not in load_function_words() | read_words(LEFT_OUT)


def add_words(tokenizer: Any, words: Sequence[str]) -> tuple[Any, list[list[int]]]:
    """A WordPiece tokenizer that also has whole words as tokens; and the pieces, as ids, that each new token replaces.

    New tokens follow the others. A longer word that begins with a new token has it as its first piece.
    """
    from tokenizers import Tokenizer

    config = orjson.loads(tokenizer.backend_tokenizer.to_str())
    if config["model"].get("type") != "WordPiece":
        raise UsageError(f"a tokenizer of type {config['model'].get('type')}, expected WordPiece: words become tokens")
    known = config["model"]["vocab"]
    new = [word for word in words if word not in known]
    pieces = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(word)) for word in new]
    config["model"]["vocab"] = known | {word: len(known) + number for number, word in enumerate(new)}
    config["truncation"] = config["padding"] = None
    return Tokenizer.from_str(orjson.dumps(config).decode()), pieces


def read_class_names(path: Path) -> list[str]:
    """The names of the classes of a classifier, in its order: a JSON list."""
    names: list[str] = read_json_value(path, "list of the names of the classes", list, UsageError)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{path}: expected a JSON list of the names of the classes")
    return names


def match_class_words(names: Sequence[str], known: Sequence[str]) -> dict[str, list[int]]:
    """The classes of each class word: those that are no `known` words, in alphabetical order, then those that are.

    Words of names are class words if not known (*fire* of *fire truck* says nothing of fire), those of kinds always.
    """
    places: dict[str, set[int]] = {}
    left_out = set(known)
    for number, name in enumerate(names):
        for word in filter(names_something, count_words([name])):
            if word not in left_out:
                places.setdefault(word, set()).add(number)
    for word, fit_kind in read_kinds().items():
        if numbers := [number for number, name in enumerate(names) if name in fit_kind]:
            places.setdefault(word, set()).update(numbers)
    return {word: sorted(places[word]) for word in sorted(places, key=lambda word: (word in left_out, word))}


def join_terms(terms: Sequence[str], classes: Mapping[str, list[int]]) -> list[str]:
    """The terms of the captions, then the class words that are none of them."""
    return list(dict.fromkeys([*terms, *classes]))


@cache
def read_kinds() -> dict[str, frozenset[str]]:
    """Words for kinds of things, and the names of the classes that are of the kind."""
    lines = (line.partition(":") for line in KINDS.read_text(encoding="utf-8").splitlines())
    named = {words: frozenset(map(str.strip, names.split(","))) for words, _, names in lines if names}
    return {word: names for words, names in named.items() if not words.startswith("#") for word in words.split()}


def save_tokenizer(tokens: list[str], folder: Path, max_length: int) -> Any:
    """Writes an uncased BERT tokenizer with these tokens into a folder and returns it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = {token: number for number, token in enumerate(tokens)}
    core = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    core.decoder = decoders.WordPiece()
    return save_core(core, folder, max_length)


def make_tokenizer(tokenizer: str | None, texts: Texts, size: int, folder: Path, max_length: int) -> Any:
    """The tokenizer of a network with random weights, of a checkpoint or learned from texts, written into a folder."""
    if tokenizer is None:
        return save_tokenizer(learn_words(texts, size), folder, max_length)
    return copy_tokenizer(find_checkpoint(tokenizer, weights=False).folder, folder)


def copy_tokenizer(source: Path, folder: Path, size: int | None = None) -> Any:
    """The tokenizer of a folder, which has as many tokens as its model has rows, written into another folder."""
    tokenizer = load_tokenizer(source, size)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def save_core(core: Any, folder: Path, max_length: int) -> Any:
    """Writes a BERT tokenizer, given as `tokenizers.Tokenizer`, into a folder, and returns transformers' tokenizer."""
    import transformers

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
