"""Draws texts as scanned pages: `python -m eval.analyses.pages.draw_pages --dataset beir:scifact --output DIR`.

Pages whose words are known, and which are judged: what OCR costs a search, and what a model of pages gains, can be
measured without a collection of scans. A page is A4 at 150 dots an inch, in a typeface, a size, one or two columns, a
shade of paper and ink, a blur, a noise, a rotation and a JPEG quality that are drawn from the seed and the document's
id. The same versions of Pillow and matplotlib, whose fonts are used, draw the same pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import quote
from zlib import crc32

import numpy as np
import orjson
import typer

from lexvl_anserini.cli import DataDir, Overwrite, Style, Verbose, print_rows, progress_bar, run
from lexvl_anserini.data.dataset import Dataset, load_dataset
from lexvl_anserini.ground.claims import refuse_existing
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import new_folder
from lexvl_anserini.ground.records import Document, Qrel, Topic
from lexvl_anserini.ground.registry import require

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

# Width and height of a page and its margin, in pixels: A4 at 150 dots an inch.
WIDTH, HEIGHT, MARGIN = 1240, 1754, 110
GUTTER = 50
# Text and title of a typeface: files of matplotlib.
FACES = (
    ("DejaVuSerif", "DejaVuSerif-Bold"),
    ("DejaVuSans", "DejaVuSans-Bold"),
    ("STIXGeneral", "STIXGeneralBol"),
)
# Pixels of the text: 10 to 12.5 points; a text that is too long becomes smaller, down to 7 points.
SIZES, LEAST_SIZE = (21, 26), 15
LINE, TITLE = 1.35, 1.5


class Look(NamedTuple):
    """How a page looks."""

    face: tuple[str, str]
    size: int
    columns: int
    paper: int
    ink: int
    degrees: float
    blur: float
    noise: float
    quality: int


class SetLine(NamedTuple):
    """A line of text at a place of the page, in pixels."""

    left: float
    top: float
    text: str
    font: FreeTypeFont


def command(
    dataset: Annotated[str, typer.Option(help="A dataset of texts with judgements: beir:<path>, beir/<name>, ...")],
    output: Annotated[Path, typer.Option(help="Folder of the pages, of their texts, topics and judgements.")],
    documents: Annotated[int, typer.Option(min=1, help="Pages, of relevant documents first.")] = 600,
    topics: Annotated[int | None, typer.Option(min=1, help="Topics, drawn by the seed; default all.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of the topics; default test.")] = None,
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Seed of topics, documents and the looks of pages.")] = 0,
    overwrite: Overwrite = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Draw documents as scanned pages, and write their texts, topics and judgements beside them.

    DIR/pages is searched as `pages:DIR/pages`; `beir:DIR` has the true texts under the same ids.

    Example: python -m eval.analyses.pages.draw_pages --dataset beir/scifact --documents 600 --output pages-scifact
    """
    require("matplotlib")
    refuse_existing(output, overwrite)
    source = load_dataset(dataset, split, data_dir=data_dir)
    chosen, qrels, pages = chosen_pages(source, documents, topics, seed)
    cut = 0
    with new_folder(output) as folder, progress_bar(f"draw {output}", len(pages), "pages") as progress:
        (folder / "pages").mkdir()
        with open(folder / "corpus.jsonl", "wb") as corpus:
            for document in pages:
                image, drawn, look = draw_page(document, seed)
                image.save(folder / "pages" / file_name(document.doc_id), quality=look.quality)
                cut += drawn != document
                fields = {"_id": page_id(document.doc_id), "title": drawn.title or "", "text": drawn.text or ""}
                corpus.write(orjson.dumps(fields) + b"\n")
                progress(1)
        write_judgements(folder, chosen, qrels, source.split)
    rows = {"output": str(output), "pages": len(pages), "cut": cut, "topics": len(chosen), "judgements": len(qrels)}
    print_rows(rows, style)


def chosen_pages(
    source: Dataset, documents: int, topics: int | None, seed: int
) -> tuple[list[Topic], list[Qrel], list[Document]]:
    """The topics, their relevant judgements, and the documents: all relevant ones, then others drawn by the seed.

    The corpus is read once, into memory.

    Raises:
        UsageError: more topics than there are, or more relevant documents than pages.
    """
    relevant: dict[str, list[Qrel]] = defaultdict(list)
    for qrel in source.qrels():
        if qrel.relevance > 0:
            relevant[qrel.query_id].append(qrel)
    judged = [topic for topic in source.topics() if topic.query_id in relevant]
    if (topics or 0) > len(judged):
        raise UsageError(f"--topics {topics}: {source.name} has {len(judged)} topics with a relevant document")
    draw = np.random.default_rng(seed)
    chosen = [judged[place] for place in sorted(draw.permutation(len(judged))[:topics])]
    qrels = [qrel for topic in chosen for qrel in relevant[topic.query_id]]
    first = {qrel.doc_id for qrel in qrels}
    if len(first) > documents:
        raise UsageError(
            f"{len(chosen)} topics have {len(first)} relevant documents, more than --documents {documents}; "
            "choose fewer --topics"
        )
    corpus = list(source.documents())
    others = [document.doc_id for document in corpus if document.doc_id not in first]
    added = draw.permutation(len(others))[: documents - len(first)]
    drawn_ids = first | {others[place] for place in added}
    return chosen, qrels, [document for document in corpus if document.doc_id in drawn_ids]


def write_judgements(folder: Path, topics: Sequence[Topic], qrels: Sequence[Qrel], split: str) -> None:
    """Writes queries.jsonl and qrels/<split>.tsv in BEIR's form, with the ids of pages."""
    lines = (orjson.dumps({"_id": topic.query_id, "text": topic.text}) for topic in topics)
    (folder / "queries.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (folder / "qrels").mkdir()
    rows = [f"{qrel.query_id}\t{page_id(qrel.doc_id)}\t{qrel.relevance}\n" for qrel in qrels]
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), encoding="utf-8")


def file_name(doc_id: str) -> str:
    """The file of a document's page; every id gives another one, without characters that folders refuse."""
    return f"{quote(doc_id, safe='')}.jpg"


def page_id(doc_id: str) -> str:
    """The id of the page in the corpus `pages:`."""
    return f"{file_name(doc_id)}#1"


# --- a page ---


def look_of(doc_id: str, seed: int) -> tuple[Look, np.random.Generator]:
    """How the page of a document looks, and the source of its noise."""
    draw = np.random.default_rng([seed, crc32(doc_id.encode())])
    look = Look(
        face=FACES[draw.integers(len(FACES))],
        size=int(draw.integers(*SIZES)),
        columns=int(draw.integers(1, 3)),
        paper=int(draw.integers(228, 253)),
        ink=int(draw.integers(10, 70)),
        degrees=float(draw.uniform(-1.2, 1.2)),
        blur=float(draw.uniform(0.3, 0.9)),
        noise=float(draw.uniform(3, 12)),
        quality=int(draw.integers(45, 86)),
    )
    return look, draw


def draw_page(document: Document, seed: int = 0) -> tuple[Image, Document, Look]:
    """The page of a document, RGB; the document as drawn, whose text is cut where it does not fit; and its look."""
    from PIL import Image, ImageDraw, ImageFilter

    look, draw = look_of(document.doc_id, seed)
    lines, drawn = set_text(document, look)
    page = Image.new("L", (WIDTH, HEIGHT), look.paper)
    pen = ImageDraw.Draw(page)
    for line in lines:
        pen.text((line.left, line.top), line.text, font=line.font, fill=look.ink)
    page = page.rotate(look.degrees, Image.Resampling.BICUBIC, fillcolor=look.paper)
    pixels = np.asarray(page.filter(ImageFilter.GaussianBlur(look.blur)), np.float32)
    pixels = pixels + draw.normal(0, look.noise, pixels.shape).astype(np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB"), drawn, look


def set_text(document: Document, look: Look) -> tuple[list[SetLine], Document]:
    """The lines of a page in the largest type up to the look's with which all words fit, and what they say."""
    title, words = (document.title or "").split(), (document.text or "").split()
    for size in range(look.size, LEAST_SIZE - 1, -1):
        heading, body = font(look.face[1], round(size * TITLE)), font(look.face[0], size)
        lines = list(_column(title, heading, MARGIN, MARGIN, WIDTH - 2 * MARGIN))
        top = lines[-1].top + 2 * size * TITLE * LINE if lines else MARGIN
        across = (WIDTH - 2 * MARGIN - GUTTER * (look.columns - 1)) / look.columns
        wrapped = list(_column(words, body, 0, 0, across))
        fitting = max(int((HEIGHT - MARGIN - top) / (size * LINE)), 0)
        if len(wrapped) <= fitting * look.columns:
            break
    per_column = min(-(-len(wrapped) // look.columns), fitting)
    shown = wrapped[: per_column * look.columns]
    for number, line in enumerate(shown):
        column, row = divmod(number, per_column)
        lines.append(line._replace(left=MARGIN + column * (across + GUTTER), top=top + row * size * LINE))
    if len(shown) == len(wrapped):
        return lines, document
    return lines, document._replace(text=" ".join(line.text for line in shown))


def _column(words: Sequence[str], type_: FreeTypeFont, left: float, top: float, width: float) -> Iterator[SetLine]:
    """Words in lines of a width; a longer word has a line of its own."""
    line: list[str] = []
    for word in words:
        if line and type_.getlength(" ".join([*line, word])) > width:
            yield SetLine(left, top, " ".join(line), type_)
            line, top = [], top + type_.size * LINE
        line.append(word)
    if line:
        yield SetLine(left, top, " ".join(line), type_)


@cache
def font(name: str, size: int) -> FreeTypeFont:
    """A font of matplotlib in pixels."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf", size)


if __name__ == "__main__":
    run(command)
