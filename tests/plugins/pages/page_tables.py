"""Data sets of pages as the hub has them: Parquet tables of pages, queries and judgements."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def write_tables(folder: Path, **tables: dict[str, list]) -> None:
    """Writes a data set as the hub has it."""
    for name, columns in tables.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / name / "test-00000-of-00001.parquet")


def page(shade: int) -> dict[str, bytes]:
    """A picture of one shade."""
    out = io.BytesIO()
    Image.new("RGB", (40, 56), (shade, shade, 90)).save(out, "PNG")
    return {"bytes": out.getvalue()}
