"""Precomputed dense vectors of captioned images as a corpus, in the layout that D2S' authors publish on the hub.

    img_embs.parquet, text_embs.parquet   columns `id` (imgid, sentid) and `emb` (list of floats)
    dataset_meta.json                     Karpathy's JSON: which caption belongs to which image, and the splits

Heads over frozen features (D2S, Joint) read these vectors where other encoders read images. The reference of a vector
is `table.parquet::id` and takes the place of an image's path; a caption also keeps its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lexvl_anserini.data.checks import check_id, unescape_id
from lexvl_anserini.data.corpora.captioned import DEFAULT_DIRECTION, DEFAULT_SPLIT, read_captioned_images, view_dataset
from lexvl_anserini.data.dataset import Dataset, choose_direction
from lexvl_anserini.data.lines import FileState, choose_files, read_file_state, some
from lexvl_anserini.data.parquet import Failure, is_numbers, raise_parquet_errors, read_batches
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.machine import expand_path, split_path
from lexvl_anserini.ground.records import CorpusRef, Document

if TYPE_CHECKING:
    import numpy as np

IMAGES, TEXTS, CAPTIONS = "img_embs", "text_embs", "dataset_meta.json"
OFFERED = ("text-to-image", "image-to-text")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
REFERENCE = re.compile(r"(?P<table>.+?\.parquet)::(?P<id>.+)", re.DOTALL)  # a reference to a vector
TABLES_HELD = 2  # tables held in memory at once, at 4 bytes a number: captions and images of one corpus


@dataclass(frozen=True)
class Tables:
    """The files of a corpus of embeddings.

    The tables' names end in the name of the features, which may be empty: `before_proj_blip`. Ids of documents and
    topics may be escaped; those in the tables are not.
    """

    folder: Path
    features: str = ""
    escaped: bool = False

    def table(self, kind: str) -> Path:
        """The table of images or texts; the error about a missing one names those that exist."""
        path = self.folder / f"{kind}{'_' if self.features else ''}{self.features}.parquet"
        if not path.is_file():
            there = ", ".join(file.name for file in choose_files(self.folder, ".parquet")) or "none"
            raise DataError(f"{path}: no such table of embeddings; tables there: {there}")
        return path

    def refer(self, kind: str, item_id: str) -> str:
        """The reference of a vector: `table.parquet::id`."""
        return f"{self.table(kind)}::{unescape_id(item_id) if self.escaped else item_id}"


def load_embeddings(ref: CorpusRef) -> Dataset:
    """Loads `embeddings:<folder>[,<features>]` or `embeddings:<hub id of a dataset>[,<features>]`.

    `embeddings:FOLDER,before_proj_blip` reads img_embs_before_proj_blip.parquet and text_embs_before_proj_blip.parquet.
    Splits are those of dataset_meta.json: `test` (default), `val`, `train` (with COCO's `restval`), ... A folder
    without that file has documents (every row of the image or text table) but neither topics nor judgements. The
    direction is text-to-image (default) or image-to-text.
    """
    tables = _open_tables(ref)
    direction = choose_direction(ref, OFFERED, DEFAULT_DIRECTION)
    tables.table(IMAGES), tables.table(TEXTS)
    if not (tables.folder / CAPTIONS).is_file():
        if ref.split is not None:
            raise DataError(f"{tables.folder}: split {ref.split!r}, but there is no {CAPTIONS} that says what is in it")
        return Dataset.of(
            replace(ref, direction=direction),
            documents=partial(_list_rows, tables, IMAGES if direction == "text-to-image" else TEXTS),
            topics=partial(_refuse_captions, tables.folder, "topics"),
            qrels=partial(_refuse_captions, tables.folder, "judgements"),
        )
    split = ref.split or DEFAULT_SPLIT
    images = read_captioned_images(tables.folder / CAPTIONS, split, ref.escape_ids)
    ref = replace(ref, split=split, direction=direction)
    by_id = [image._replace(file=image.image_id) for image in images]
    dataset = view_dataset(ref, lambda: by_id, lambda: partial(tables.refer, IMAGES))

    # A caption has its text already; add the reference of its vector.
    return replace(
        dataset,
        documents=lambda: (d._replace(image=d.image or tables.refer(TEXTS, d[0])) for d in dataset.documents()),
        topics=lambda: (t._replace(image=t.image or tables.refer(TEXTS, t[0])) for t in dataset.topics()),
    )


def find_image_reference(ref: CorpusRef, image_id: str) -> str:
    """The reference of the vector of an image, by the image's id, whatever its split."""
    return _open_tables(ref).refer(IMAGES, image_id)


def _open_tables(ref: CorpusRef) -> Tables:
    where, features = split_path(ref.name.partition(":")[2])
    if not where:
        raise UsageError(f"{ref.name!r} names no folder; expected embeddings:<folder or hub id>[,<features>]")
    return Tables(_find_folder(where), features, ref.escape_ids)


def _list_rows(tables: Tables, kind: str) -> Iterator[Document]:
    path = tables.table(kind)
    for number, row_id in enumerate(_read_table(path, read_file_state(path)).rows, start=1):
        doc_id = check_id(row_id, f"{path} row {number}", tables.escaped)
        yield Document(doc_id, image=f"{path}::{row_id}")


def _refuse_captions(folder: Path, what: str) -> NoReturn:
    raise DataError(f"{folder}: no {CAPTIONS}, hence no {what}; put Karpathy's JSON of the images there")


def _find_folder(where: str) -> Path:
    """The folder of that name, else the dataset of that hub id."""
    folder = expand_path(where)
    if folder.is_dir():
        return folder
    if folder.exists() or where.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(where):
        raise DataError(f"{where}: no such folder of embeddings, and not the hub id of a dataset (owner/name) either")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(where, repo_type="dataset", allow_patterns=["*.parquet", CAPTIONS]))
    except Exception as error:  # whatever the HTTP stack raises when the hub is away or a download breaks
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"no such folder here, and the hub's dataset cannot be downloaded ({reason})"
        remedy = "download it where the hub can be reached and name its folder: embeddings:<folder>"
        raise DataError(f"{where}: {what}; {remedy}") from error


@dataclass(frozen=True)
class EmbeddingTable:
    """A table in memory: the row of each id, and the vectors float32 [n, D]."""

    rows: dict[str, int]
    vectors: np.ndarray


def read_embeddings(references: Sequence[str]) -> np.ndarray:
    """The vectors, float32 [n, D], of `table.parquet::id` references."""
    import numpy as np

    by_table: dict[Path, list[tuple[int, str]]] = {}
    for position, reference in enumerate(references):
        match = REFERENCE.fullmatch(reference)
        if match is None:
            remedy = "or name the model that reads texts and images: --set backbone_checkpoint=..."
            what = "not an embedding (table.parquet::id); encode a corpus of embeddings (embeddings:<folder>)"
            raise DataError(f"{reference[:80]!r}: {what}, {remedy}")
        by_table.setdefault(Path(match["table"]), []).append((position, match["id"]))
    vectors = np.empty((0, 0), dtype=np.float32)
    for path, items in by_table.items():
        table = _read_table(path, read_file_state(path))
        if missing := [item_id for _, item_id in items if item_id not in table.rows]:
            raise DataError(f"{path}: no embedding of id {some(missing)}; {len(table.rows)} rows")
        if not vectors.size:
            vectors = np.empty((len(references), table.vectors.shape[1]), dtype=np.float32)
        width = table.vectors.shape[1]
        if vectors.shape[1] != width:
            raise DataError(f"{path}: vectors of {width} numbers, other tables have {vectors.shape[1]}")
        vectors[[position for position, _ in items]] = table.vectors[[table.rows[item_id] for _, item_id in items]]
    return vectors


@lru_cache(maxsize=TABLES_HELD)
def _read_table(path: Path, state: FileState) -> EmbeddingTable:
    """Decodes a table, once for all batches that read its rows."""
    import numpy as np
    from pyarrow.types import is_fixed_size_list

    columns = {"id": lambda kind: not kind.num_fields, "emb": lambda kind: is_numbers(kind) or is_fixed_size_list(kind)}
    with raise_parquet_errors(path, Failure()):
        parts = [_read_rows(path, batch) for batch in read_batches(path, columns)]
    ids = [row_id for part, _ in parts for row_id in part]
    if not ids:
        raise DataError(f"{path}: no row in it")
    if len(widths := {vectors.shape[1] for _, vectors in parts}) != 1:
        raise DataError(f"{path}: vectors of {sorted(widths)} numbers, expected one length")
    rows = {row_id: row for row, row_id in enumerate(ids)}
    if len(rows) != len(ids):
        twice = next(row_id for row, row_id in enumerate(ids) if rows[row_id] != row)
        raise DataError(f"{path}: id {twice} occurs more than once; ids must be distinct")
    return EmbeddingTable(rows, np.concatenate([vectors for _, vectors in parts]))


def _read_rows(path: Path, batch: Any) -> tuple[list[str], np.ndarray]:
    """Ids and vectors float32 [n, D] of one record batch."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    ids, lists = batch.column("id").cast(pa.string()), batch.column("emb")
    if ids.null_count or lists.null_count:
        raise DataError(f"{path}: a row lacks its id or its emb; every row needs both")
    if len(lengths := compute.unique(compute.list_value_length(lists)).to_pylist()) > 1:
        raise DataError(f"{path}: vectors of {sorted(lengths)} numbers, expected one length")
    values = lists.flatten()
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)) or values.null_count:
        raise DataError(f"{path}: column emb holds lists of {values.type}, or of nulls; expected numbers")
    vectors = values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(lists), -1)
    if not np.isfinite(vectors).all():
        raise DataError(f"{path}: an embedding has a number that is not finite")
    return ids.to_pylist(), vectors
