"""PDFs, scans and pictures as a corpus of pages (`pages:<path>`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import tee
from pathlib import Path

from lexvl_anserini.data.checks import unescape_id
from lexvl_anserini.data.corpora.folder import (
    Files,
    OtherFiles,
    check_name,
    find_place,
    get_suffix,
    list_corpus_files,
    nothing,
)
from lexvl_anserini.data.dataset import DIRECTIONS, Dataset, choose_direction
from lexvl_anserini.data.lines import LeftOut, log_once
from lexvl_anserini.data.pictures.archives import PageReference
from lexvl_anserini.data.pictures.images import HEIC_REMEDY, HEIC_SUFFIXES, list_image_suffixes
from lexvl_anserini.ground.errors import DataError
from lexvl_anserini.ground.records import CorpusRef, Document
from lexvl_anserini.ground.registry import require
from lexvl_plugins.pages import pdf
from lexvl_plugins.pages.page import join_words
from lexvl_plugins.pages.reading import PageReader, ReadPage

# Why a file is named that is read.
NO_END = "what a cut off PDF lost; its other pages are read"


def load_pages(ref: CorpusRef) -> Dataset:
    """Loads `pages:<path>`; the path is a folder, an uncompressed tar of one, or a PDF or picture.

    Every page of every PDF, TIFF and other picture is a document, in the order of paths and pages. Its id is the path
    with the number of the page, `reports/a.pdf#3`; its image is the page as a picture, its text the words of the text
    layer, or of OCR where there is none. Whatever has no pages (hidden files, files of other kinds, PDFs with a
    password, damaged and empty files) is counted and named in the log. A page that cannot be read is a document with a
    problem.
    """
    require("pebble", "pypdfium2", "rapidocr")
    files = _find_files(find_place(ref))
    if not any(_has_pages(name) for name in files.names(LeftOut())):
        raise DataError(f"{files.where}: no file with pages in it; expected .pdf, .tif, .jpg, .png, ...")
    if ref.split is not None:
        raise DataError(f"{ref.name}: split {ref.split!r} of pages, which have no splits")
    return Dataset.of(
        replace(ref, direction=choose_direction(ref, DIRECTIONS, "text-to-image")),
        documents=partial(read_pages, files, ref.escape_ids),
        topics=partial(nothing, files.where, "topics"),
        qrels=partial(nothing, files.where, "judgements"),
    )


def find_reference(ref: CorpusRef, doc_id: str) -> str:
    """The reference of a page by the id of its document; the corpus is not read."""
    return _find_files(find_place(ref)).refer(unescape_id(doc_id) if ref.escape_ids else doc_id)


def read_pages(files: Files, escape_ids: bool = False) -> Iterator[Document]:
    """Streams the pages of all files; some pages are read ahead."""
    left_out, others = LeftOut(), OtherFiles()
    with PageReader() as reader:
        names, pages = tee(_list_pages(files, reader, left_out, others))
        read = reader.read(page for _, page in pages)
        for (name, _), page in zip(names, read, strict=True):
            yield _build_document(name, page, escape_ids)
        log_once(f"{files.where}: pages: {reader.describe() or 'none'}", logging.INFO)
    left_out.log(str(files.where))
    others.log(files.where, "neither PDF nor picture")


def _find_files(where: Path) -> Files:
    if not (where.is_file() and _has_pages(where.name)):
        return list_corpus_files(where)
    return list_corpus_files(where.parent)._replace(names=lambda left_out: iter([where.name]))


def _has_pages(name: str) -> bool:
    suffix = get_suffix(name)
    return suffix == pdf.SUFFIX or suffix in list_image_suffixes()


def _list_pages(
    files: Files, reader: PageReader, left_out: LeftOut, others: OtherFiles
) -> Iterator[tuple[str, PageReference]]:
    """The pages of all files, each with the name of its file."""
    for name in files.names(left_out):
        if not _has_pages(name):
            if get_suffix(name) in HEIC_SUFFIXES:
                left_out.add(f"HEIC pictures ({HEIC_REMEDY})", name)
            else:
                others.add(name)
            continue
        where = files.refer(name)
        try:
            pages = reader.count_pages(where)
        except DataError as problem:
            left_out.add(str(problem).removeprefix(f"{where}: ").partition(" (")[0], name)
            continue
        if not pages.number:
            left_out.add("it has no page", name)
        if not pages.whole:
            left_out.add(NO_END, name)
        yield from ((name, PageReference(where, number)) for number in range(1, pages.number + 1))


def _build_id(name: str, number: int, where: str, escape_ids: bool) -> str:
    """`a.pdf#3`: the only `#` ends the id of the file, to which `--passages` counts its pages."""
    checked = check_name(f"{name}#{number}", where, escape_ids)
    if "#" not in name:
        return checked
    if not escape_ids:
        raise DataError(f"{where}: '#' in the file's name, but it ends a file's id; --escape-ids encodes it")
    file_id, _, page = checked.rpartition("#")
    return f"{file_id.replace('#', '%23')}#{page}"


def _build_document(name: str, read: ReadPage, escape_ids: bool) -> Document:
    where, number = str(read.page), read.page.page
    doc_id = _build_id(name, number, where, escape_ids)
    metadata = {"file": name, "page": number}
    if read.words is None:
        return Document(doc_id, image=where, metadata=metadata, problem=read.problem)
    text, source = join_words(read.words.words), read.words.source
    return Document(doc_id, text=text, image=where, metadata={**metadata, "words": source})
