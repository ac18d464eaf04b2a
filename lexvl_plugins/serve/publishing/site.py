"""Writes an index as a folder of static files: the search page, its words, postings, documents, pictures and maps.

    SITE/index.html, page.js, page.css, icon.svg
    SITE/data/site.js          what the page shows at first, and where the other data are
    SITE/data/words.js         the tokenizer (`words.py`), terms
    SITE/data/related.js       terms to offer (`related.py`)
    SITE/data/postings-N.js    lists of a range of terms (`postings.py`)
    SITE/data/documents-N.js   PART documents: id, title, text, the suffix of the picture's file
    SITE/data/grids-N.js       their maps (`grids.py`)
    SITE/pictures/N.jpg        thumbnails, by a document's number in the order of ids
    SITE/site.json             marks the folder, so that another site may replace it

Nothing of it names a place on this machine, and the pictures have pixels alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from lexvl_anserini import __version__
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.describing import options_of
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import new_folder, write_json
from lexvl_anserini.ground.manifest import expect_lexical
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_plugins.serve.answering import described
from lexvl_plugins.serve.documents import UNKNOWN, EncodedPicture, ShownDocument, scaled
from lexvl_plugins.serve.opened import LiveIndex, ServedIndex, opened
from lexvl_plugins.serve.publishing import grids, postings, related, words
from lexvl_plugins.serve.publishing.data_files import DATA, write_part

FORMAT = "lexvl-site/1"
MARK = "site.json"
PICTURES = "pictures"

# Documents of a file.
PART = 256

# The scripts of the page in the order in which they are joined.
SCRIPTS = ("static.js", "view.js", "page.js")

# Suffixes of pictures by media type.
SUFFIXES = {"image/jpeg": "jpg", "image/png": "png"}


@dataclass(frozen=True)
class Publication:
    """What a site shows of an index.

    side         pixels of a thumbnail's longer side
    map_terms    terms of a picture that have a map; 0 for no maps
    replace_ids  numbers in the place of document ids
    examples     queries that the page offers; empty for the corpus's own
    """

    side: int = 320
    map_terms: int = 10
    replace_ids: bool = False
    examples: Sequence[str] = ()


def publish(
    served: ServedIndex,
    site: Path,
    publication: Publication = Publication(),
    overwrite: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Writes the site of an index, whole or not at all; returns its counts and bytes.

    Args:
        served: the index; its name is the site's title.
        site: a folder; one that holds anything but a site is refused.
        overwrite: replace a site.
        progress: called with the number of documents just written.

    Raises:
        UsageError: no impact index of one encoder, or one whose queries are not bags of words.
        ArtefactError: no index, or `site` is there.
        DataError: the corpus cannot be read.
    """
    manifest = index_manifest(served.path)
    expect_lexical(served.path, manifest.kind, "a site has postings of terms")
    if manifest.fields:
        raise UsageError(f"{served.path}: an index of the fields {', '.join(manifest.fields)}; a site has one encoder")
    _check_place(site, served.path, overwrite)
    live = opened(served)
    try:
        word_rules = words.words_of(live.model, manifest)
        if live.corpus.problem:
            raise DataError(f"{served.path}: {live.corpus.problem}")
        if live.terms and tuple(live.terms) != live.model.vocabulary.terms:
            raise ArtefactError(f"{served.path}: its vocabulary is not that of its encoder's queries")
        with new_folder(site) as part:
            return _Site(part, live, publication).write(word_rules, progress)
    finally:
        live.close()


def bare_words(encoder: str) -> dict[str, str]:
    """The options with which the queries of an encoder are bags of words, where it has such a mode."""
    return {"mode": "alpha"} if any(option.name == "mode" for option in options_of(encoder)) else {}


def _check_place(site: Path, index: Path, overwrite: bool) -> None:
    """Refuses a folder that must not be replaced."""
    if site.resolve().is_relative_to(index.resolve()):
        raise UsageError(f"{site}: in the folder of the index; name a folder outside")
    if not site.exists() or (site.is_dir() and not any(site.iterdir())):
        return
    if not (site / MARK).is_file():
        raise ArtefactError(f"{site}: holds other files than a site; name a folder that is empty or not there")
    if not overwrite:
        raise ArtefactError(f"{site}: exists; --overwrite replaces it")


@dataclass
class _Site:
    """A site while it is written into a folder; `_samples` are ids, numbers and suffixes of some pictures."""

    folder: Path
    live: LiveIndex
    publication: Publication
    _samples: list[tuple[str, int, str]] = field(default_factory=list)

    def write(self, word_rules: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Writes all files."""
        lists = postings.read_postings(self.live.served.path, self.live.model.vocabulary)
        (self.folder / DATA).mkdir()
        (self.folder / PICTURES).mkdir()
        starts, sizes = [], {"postings": 0, "documents": 0, "maps": 0}
        for number, (first, text) in enumerate(postings.in_ranges(lists)):
            starts.append(first)
            sizes["postings"] += write_part(self.folder, f"postings-{number}", text)
        terms = self.live.model.vocabulary.terms
        sizes["words"] = write_part(self.folder, "words", {**word_rules, "terms": terms})
        sizes["words"] += write_part(self.folder, "related", related.related_terms(lists))
        for begin in range(0, len(lists.ids), PART):
            self._write_documents(begin, lists, sizes)
            progress(min(PART, len(lists.ids) - begin))
        description = {**self._description(), "samples": self._samples, "starts": starts, "part": PART}
        sizes["page"] = write_part(self.folder, "site", description)
        sizes["page"] += write_page(self.folder)
        write_json(self.folder / MARK, {"format": FORMAT, "documents": len(lists.ids), "version": __version__})
        sizes["pictures"] = sum(file.stat().st_size for file in (self.folder / PICTURES).iterdir())
        return {
            "documents": len(lists.ids),
            "postings": len(lists.documents),
            **{f"{what}, bytes": size for what, size in sizes.items()},
            "bytes": sum(sizes.values()),
        }

    def _description(self) -> dict[str, Any]:
        """What the page knows of the index, and the queries that it offers."""
        maps = self.publication.map_terms > 0 and self.live.map_tower is not None
        shown = described(self.live, "").model_copy(
            update={"corpus": "", "fields": [], "sends": False, "maps": maps and bool(self._sampled)}
        )
        examples = list(self.publication.examples or self.live.examples)
        return {"indexes": [shown.model_dump()], "examples": examples, "version": __version__}

    @cached_property
    def _sampled(self) -> frozenset[str]:
        """The ids of documents whose pictures a page without a query shows."""
        return frozenset(self.live.corpus.sample())

    def _write_documents(self, begin: int, lists: postings.TermPostings, sizes: dict[str, int]) -> None:
        """Writes PART documents, their pictures and maps."""
        rows: list[list[str]] = []
        maps: list[grids.Grids | None] = []
        numbers = range(begin, min(begin + PART, len(lists.ids)))
        heaviest = self._heaviest(numbers, lists)
        for number in numbers:
            doc_id = lists.ids[number]
            document = self.live.corpus.documents.get(doc_id, UNKNOWN)
            suffix = self._write_picture(number, doc_id, document)
            shown = str(number + 1) if self.publication.replace_ids else doc_id
            rows.append([shown, document.title, document.text, suffix])
            if suffix and doc_id in self._sampled:
                self._samples.append((shown, number, suffix))
            maps.append(self._grids(document, heaviest[number]) if suffix else None)
        sizes["documents"] += write_part(self.folder, f"documents-{begin // PART}", rows)
        if any(maps):
            sizes["maps"] += write_part(self.folder, f"grids-{begin // PART}", grids.as_part(maps))

    def _write_picture(self, number: int, doc_id: str, document: ShownDocument) -> str:
        """Writes the thumbnail of a document; returns the suffix of its file, empty without a picture."""
        if document.picture is None:
            return ""
        picture = thumbnail(self.live.corpus.picture(doc_id), self.publication.side)
        suffix = SUFFIXES[picture.media_type]
        (self.folder / PICTURES / f"{number}.{suffix}").write_bytes(picture.content)
        return suffix

    def _heaviest(self, numbers: range, lists: postings.TermPostings) -> dict[int, list[int]]:
        """The dimensions of the heaviest terms of documents, by a document's number."""
        heaviest: dict[int, list[int]] = {number: [] for number in numbers}
        if not self.publication.map_terms or self.live.map_tower is None:
            return heaviest
        by_document = lists.matrix()[:, numbers.start : numbers.stop].tocsc()
        for at, number in enumerate(numbers):
            column = by_document[:, [at]]
            order = sorted(zip((-column.data).tolist(), column.indices.tolist(), strict=True))
            heaviest[number] = [dimension for _, dimension in order[: self.publication.map_terms]]
        return heaviest

    def _grids(self, document: ShownDocument, dimensions: Sequence[int]) -> grids.Grids | None:
        """The maps of a document's picture."""
        if not dimensions or document.picture is None:
            return None
        assert self.live.map_tower is not None
        return grids.grids_of(self.live.map_tower, document.picture, dimensions)


def thumbnail(reference: str, side: int) -> EncodedPicture:
    """A picture of at most `side` pixels, without what its file holds besides pixels; as JPEG, or PNG where smaller."""
    picture = open_image(reference)
    small = scaled(picture, side)
    if small.media_type != "image/png":
        return small
    out = io.BytesIO()
    picture.thumbnail((side, side))
    picture.save(out, format="JPEG", quality=85)
    return min(small, EncodedPicture(out.getvalue(), "image/jpeg"), key=lambda encoded: len(encoded.content))


def write_page(site: Path) -> int:
    """Writes the files of the page, its scripts as one; returns their bytes."""
    page = files("lexvl_plugins.serve").joinpath("page")
    html = page.joinpath("index.html").read_text(encoding="utf-8")
    classic = html.replace('<script type="module" src="page.js">', '<script defer src="page.js">')
    if classic == html:
        raise AssertionError("index.html names its script in another way")
    contents = {
        "index.html": classic.encode(),
        "page.js": "".join(one_script(page.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)).encode(),
        "page.css": page.joinpath("page.css").read_bytes(),
        "icon.svg": page.joinpath("icon.svg").read_bytes(),
    }
    for name, content in contents.items():
        (site / name).write_bytes(content)
    return sum(map(len, contents.values()))


def one_script(modules: Iterator[str]) -> Iterator[str]:
    """Modules as one script that a browser runs from a disk too, where it refuses modules."""
    yield '"use strict";\n(() => {\n'
    for module in modules:
        yield re.sub(
            r"^export (?=function|class|const)", "", re.sub(r"^import .*\n", "", module, flags=re.M), flags=re.M
        )
    yield "})();\n"
