"""A tokenizer from its tokenizer.json alone, with what `TextReader` asks of one of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from lexvl_anserini.ground.errors import CheckpointError, reason_of


class Encodings(NamedTuple):
    """What a call of a fast tokenizer returns, as far as we read it."""

    encodings: list[Any]


@dataclass(frozen=True)
class BareTokenizer:
    """A `tokenizers.Tokenizer` without transformers.

    backend_tokenizer  truncates and pads nothing
    pad_token_id       id of the padding token
    truncation_side    "right", or "left" where the start of a long text is cut
    """

    backend_tokenizer: Any
    pad_token_id: int
    truncation_side: str = "right"
    is_fast: ClassVar[bool] = True

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens as texts."""
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return [token.content for _, token in sorted(added.items()) if token.special]

    def __call__(self, texts: Sequence[str], add_special_tokens: bool = True, **_: Any) -> Encodings:
        """The texts as encodings; the other arguments of transformers choose what it would return beside them."""
        return Encodings(self.backend_tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens))

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens a text, or a pair, gets."""
        return int(self.backend_tokenizer.num_special_tokens_to_add(pair))


def bare_tokenizer(data: bytes, pad_id: int, cuts_start: bool, where: str) -> BareTokenizer:
    """The tokenizer of a tokenizer.json."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(data.decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except Exception as error:  # its own class is Exception
        raise CheckpointError(f"{where}: the tokenizer cannot be read ({reason_of(error)})") from error
    return BareTokenizer(tokenizer, pad_id, "left" if cuts_start else "right")
