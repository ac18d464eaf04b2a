"""The JSON records of the API; FastAPI checks requests against them and derives the OpenAPI description."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from lexvl_anserini.ground.errors import hide_passwords
from lexvl_anserini.ground.records import SCORE_LIMIT
from lexvl_plugins.serve import limits


def whole_characters(text: str) -> str:
    """The text itself."""
    if not text.isascii() and text.encode(errors="ignore").decode() != text:
        raise ValueError("half a character (a lone surrogate), expected a text in UTF-8")
    return text


# An absolute path without its last name, also that of a file's URL. In a folder's name a colon is followed by more.
FOLDERS = re.compile(r"(?:\bfile://|(?<![\w./]))/(?:(?:[^/:;,'\"\n]|:(?=\S))+/)*(?=[^\s/])")


def hide_places(text: str) -> str:
    """A text on one line that JSON can hold, with the last names of this machine's paths, and without passwords."""
    line = " ".join(text.encode(errors="replace").decode().splitlines())
    return FOLDERS.sub("", hide_passwords(line))


Whole = AfterValidator(whole_characters)
Written = Annotated[str, Field(max_length=limits.MOST_CHARACTERS), Whole]
DocumentId = Annotated[str, Field(max_length=limits.MOST_ID), Whole]
IndexName = Annotated[str, Field(max_length=limits.MOST_ID), Whole]
PictureId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
TermWeight = Annotated[int, Field(ge=0, lt=SCORE_LIMIT)]


class Message(BaseModel):
    """A record of the API; a request with another key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MetadataFilter(Message):
    """Documents whose metadata field equals `value`, or lies between `low` and `high` (an end may be absent)."""

    field: Written
    value: Written | None = None
    low: Written | None = None
    high: Written | None = None


class Question(Message):
    """A search of one index: words, an expression, a picture, or a document of the index.

    Attributes:
        index: its name, see `/api/indexes`
        text: words for the encoder, or an expression over terms
        read_as: auto: an expression if it has a sign, a factor, a field or AND, OR, NOT
        picture: the id of a picture that was sent, instead of a text
        like: the id of a document, instead of a text
        weights: term -> weight instead of the encoder's; 0 leaves the term out
        where: an expression that documents must match; it does not change scores
        min_score: the least score of a hit, as `300`, or `20%` of the greatest that a document could have
    """

    index: IndexName
    text: Written = ""
    read_as: Literal["auto", "text", "terms"] = "auto"
    picture: PictureId | None = None
    like: DocumentId | None = None
    weights: Annotated[dict[Written, TermWeight], Field(max_length=limits.MOST_WEIGHTS)] = {}
    where: Written = ""
    filters: Annotated[list[MetadataFilter], Field(max_length=limits.MOST_FILTERS)] = []
    min_score: Written = ""
    hits: Annotated[int, Field(ge=1, le=limits.MOST_HITS)] = 24


class ShownHit(Message):
    """A document of an answer; `picture` says whether `/api/picture` has one of it."""

    rank: int
    doc_id: str
    score: float
    title: str
    text: str
    picture: bool
    metadata: dict[str, str | int | float | bool]


class Chip(Message):
    """A term of the query: its weight, and the encoder's; 0 is a term that was left out."""

    term: str
    weight: int
    given: int


class Timing(Message):
    """Milliseconds: encoding the query (0 where it was kept), searching, and all of the answer."""

    encode_ms: float
    search_ms: float
    all_ms: float


class ShownAnswer(Message):
    """The hits of a question, and how the query was read.

    Attributes:
        read_as: text, terms, picture or document; none for an empty question
        chips: the query's terms, the heaviest first; empty for an index without terms
        greatest: the greatest score that a document could have; null where there is no such bound
        nearest: no document has the least score: the hits are the nearest
        ignored: parts of the question that this index cannot take into account
        warning: why to expect little; empty as a rule
    """

    index: str
    read_as: Literal["none", "text", "terms", "picture", "document"]
    chips: list[Chip]
    hits: list[ShownHit]
    greatest: float | None
    nearest: bool
    documents: int
    ignored: list[str]
    warning: str
    timing: Timing


class ProductsQuestion(Message):
    """The products of a question's terms for some of its hits."""

    question: Question
    doc_ids: Annotated[list[DocumentId], Field(max_length=limits.MOST_HITS)]


class Product(Message):
    """A term of query and document: product = weight x impact; its field, empty in an index of one encoder."""

    term: str
    weight: float
    impact: int
    product: float
    field: str = ""


class DocumentProducts(Message):
    """The products of a document; they and `rest` (BM25, where a query has it) sum to the score."""

    doc_id: str
    score: float
    products: list[Product]
    rest: float


class MapQuestion(Message):
    """Where in the picture of a document the terms of a question are; of one term, if it is given."""

    question: Question
    doc_id: DocumentId
    term: Written | None = None


class HeatMap(Message):
    """A grid [rows][columns], 0 to 1 from the top left, and the part of the picture that it covers.

    Attributes:
        region: left, top, right, bottom as shares of width and height
        boxes: the same of each word in the picture that is one of the terms
    """

    grid: list[list[float]]
    region: list[float]
    boxes: list[list[float]]


class MetadataField(Message):
    """A metadata field of an index: its type (keyword, long, double or date), and its values if they are few."""

    name: str
    type: str
    values: list[str]


class IndexDescription(Message):
    """An index; of one that cannot be opened only its name, and its problem.

    Attributes:
        terms: its documents and queries are weighted terms
        pictures: its documents have pictures
        maps: its encoder has a grid, or its pictures have words, so that `/api/map` answers
        sends: its encoder reads pictures, so that a picture can be a query
        problem: why something is missing: the corpus, or a newer state of the index
    """

    name: str
    kind: str = ""
    encoder: str = ""
    corpus: str = ""
    documents: int = 0
    terms: bool = False
    pictures: bool = False
    maps: bool = False
    sends: bool = False
    fields: list[MetadataField] = []
    problem: str


class PageDescription(Message):
    """What the server has: its indexes in the order of the page, example queries, and ids of some pictures of each."""

    indexes: list[IndexDescription]
    pictures: dict[str, list[str]]
    examples: list[str]
    version: str


class Sent(Message):
    """The id of a picture that was sent; equal pictures have equal ids."""

    picture: PictureId


class EmbedQuestion(Message):
    """Texts, and pictures that were sent, whose vectors are wanted: at most 64 of each."""

    index: IndexName
    texts: Annotated[list[Written], Field(max_length=limits.MOST_EMBEDDED)] = []
    pictures: Annotated[list[PictureId], Field(max_length=limits.MOST_EMBEDDED)] = []


Embedding = dict[str, int] | list[float]


class Embeddings(Message):
    """The vectors of a search of the index: term -> weight, or numbers where `kind` is dense."""

    index: str
    kind: str
    texts: list[Embedding]
    pictures: list[Embedding]


class ApiFailure(Message):
    """Why a request has no answer, in one line."""

    error: str
