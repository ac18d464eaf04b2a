"""The command `lexvl publish`: an index -> a folder of static files that searches in a browser, without a server.

    SITE/index.html, page.js, page.css, icon.svg
    SITE/data/site.js          what the page shows at first, and where the other data are
    SITE/data/words.js         the tokenizer, terms
    SITE/data/related.js       terms to offer
    SITE/data/postings-N.js    lists of a range of terms
    SITE/data/documents-N.js   PART documents: id, title, text, the suffix of the picture's file
    SITE/data/grids-N.js       their maps
    SITE/pictures/N.jpg        thumbnails, by a document's number in the order of ids
    SITE/site.json             marks the folder, so that another site may replace it

Data are scripts, which a page loads from a disk too, where it may not read files (`site_data.py`). Nothing of it names
a place on this machine, and the pictures have pixels alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from lexvl_anserini import __version__, cli
from lexvl_anserini.data.pictures.images import open_image
from lexvl_anserini.encoders.describing import list_options
from lexvl_anserini.engines.index_folder import index_manifest
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.ground.files import new_folder, write_json
from lexvl_anserini.ground.manifest import expect_lexical
from lexvl_anserini.ground.progress import Progress, silent
from lexvl_anserini.searching.search import MovedCheckpoint
from lexvl_plugins.serve import site_data
from lexvl_plugins.serve.answering import describe_index
from lexvl_plugins.serve.documents import LOSSLESS, UNKNOWN, ShownDocument, scale
from lexvl_plugins.serve.indexes import LiveIndex, ServedIndex, name_indexes, open_live

FORMAT = "lexvl-site/1"
MARK = "site.json"
DATA = "data"
PICTURES = "pictures"

# The function of the page that a data file calls with its name and content.
CALLED = "lexvl"

# Documents of a file.
PART = 256

# The scripts of the page in the order in which they are joined.
SCRIPTS = ("static.js", "view.js", "page.js")

# Suffixes of pictures by media type.
SUFFIXES = {"image/jpeg": "jpg", "image/png": "png"}


@dataclass(frozen=True)
class Publication:
    """What a site shows of an index."""

    example: Annotated[
        list[str] | None, typer.Option(help="A query that the page offers; repeatable. Default the corpus's own.")
    ] = None
    side: Annotated[int, typer.Option(min=32, max=2048, help="Pixels of a thumbnail's longer side.")] = 320
    map_terms: Annotated[
        int, typer.Option(min=0, max=255, help="Terms of a picture with a map of where they are; 0 for no maps.")
    ] = 10
    replace_ids: Annotated[
        bool, typer.Option("--replace-ids", help="Numbers in the place of document ids, which may be file names.")
    ] = False


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
    """
    manifest = index_manifest(served.path)
    expect_lexical(served.path, manifest.kind, "a site has postings of terms")
    if manifest.fields:
        raise UsageError(f"{served.path}: an index of the fields {', '.join(manifest.fields)}; a site has one encoder")
    _check_place(site, served.path, overwrite)
    live = open_live(served)
    try:
        words = site_data.describe_words(live.model, manifest)
        if live.corpus.problem:
            raise DataError(f"{served.path}: {live.corpus.problem}")
        if live.terms and tuple(live.terms) != live.model.vocabulary.terms:
            raise ArtefactError(f"{served.path}: its vocabulary is not that of its encoder's queries")
        with new_folder(site) as part:
            return _Site(part, live, publication).write(words, progress)
    finally:
        live.close()


def find_bag_mode(encoder: str) -> dict[str, str]:
    """The options with which the queries of an encoder are bags of words, where it has such a mode."""
    return {"mode": "alpha"} if any(option.name == "mode" for option in list_options(encoder)) else {}


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


class _Site:
    """A site while it is written into a folder."""

    def __init__(self, folder: Path, live: LiveIndex, publication: Publication):
        self.folder, self.live, self.publication = folder, live, publication
        self.ids, self.impacts = site_data.read_postings(live.served.path, live.model.vocabulary)
        self.map_tower = live.map_tower if publication.map_terms > 0 else None
        # Documents whose pictures a page without a query shows: their ids, then ids, numbers and suffixes.
        self.sampled = frozenset(live.corpus.sample())
        self.samples: list[tuple[str, int, str]] = []
        self.sizes = dict.fromkeys(("postings", "documents", "maps", "words", "page", "pictures"), 0)

    def write(self, words: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Writes all files; returns their counts and sizes."""
        (self.folder / DATA).mkdir()
        (self.folder / PICTURES).mkdir()
        starts = []
        for number, (first, text) in enumerate(site_data.pack_postings(self.impacts)):
            starts.append(first)
            self._write_part("postings", f"postings-{number}", text)
        self._write_part("words", "words", {**words, "terms": self.live.model.vocabulary.terms})
        self._write_part("words", "related", site_data.relate_terms(self.impacts))
        for begin in range(0, len(self.ids), PART):
            numbers = range(begin, min(begin + PART, len(self.ids)))
            self._write_documents(numbers)
            progress(len(numbers))
        maps = self.map_tower is not None and bool(self.sampled)
        shown = describe_index(self.live, "").model_copy(
            update={"corpus": "", "fields": [], "sends": False, "maps": maps}
        )
        description = {"indexes": [shown.model_dump()], "version": __version__, "part": PART, "starts": starts}
        examples = list(self.publication.example or self.live.examples)
        self._write_part("page", "site", {**description, "examples": examples, "samples": self.samples})
        self.sizes["page"] += write_page(self.folder)
        write_json(self.folder / MARK, {"format": FORMAT, "documents": len(self.ids), "version": __version__})
        return {
            "documents": len(self.ids),
            "postings": self.impacts.nnz,
            **{f"{what}, bytes": size for what, size in self.sizes.items()},
            "bytes": sum(self.sizes.values()),
        }

    def _write_part(self, what: str, name: str, content: Any) -> None:
        """Writes the data file `name`, and counts its bytes."""
        script = b"%s(%s,%s)\n" % (CALLED.encode(), orjson.dumps(name), orjson.dumps(content))
        (self.folder / DATA / f"{name}.js").write_bytes(script)
        self.sizes[what] += len(script)

    def _write_documents(self, numbers: range) -> None:
        """Writes some documents, their pictures and maps."""
        rows: list[list[str]] = []
        maps: list[site_data.Grids | None] = []
        part = self.impacts[:, numbers.start : numbers.stop].tocsc()
        for at, number in enumerate(numbers):
            doc_id = self.ids[number]
            document = self.live.corpus.documents.get(doc_id, UNKNOWN)
            suffix = self._write_picture(number, doc_id, document)
            shown = str(number + 1) if self.publication.replace_ids else doc_id
            rows.append([shown, document.title, document.text, suffix])
            if suffix and doc_id in self.sampled:
                self.samples.append((shown, number, suffix))
            maps.append(self._draw_grids(document, part[:, [at]]) if suffix else None)
        number = numbers.start // PART
        self._write_part("documents", f"documents-{number}", rows)
        if any(maps):
            self._write_part("maps", f"grids-{number}", site_data.pack_grids(maps))

    def _write_picture(self, number: int, doc_id: str, document: ShownDocument) -> str:
        """Writes the thumbnail of a document; returns the suffix of its file, empty without a picture."""
        if document.picture is None:
            return ""
        image = open_image(self.live.corpus.find_picture(doc_id))
        image.thumbnail((self.publication.side, self.publication.side))
        # A small one is PNG or, where that has fewer bytes, JPEG; both have pixels alone.
        formats = (scale(image, self.publication.side, lossless) for lossless in (LOSSLESS, 0))
        picture = min(formats, key=lambda encoded: len(encoded.content))
        suffix = SUFFIXES[picture.media_type]
        (self.folder / PICTURES / f"{number}.{suffix}").write_bytes(picture.content)
        self.sizes["pictures"] += len(picture.content)
        return suffix

    def _draw_grids(self, document: ShownDocument, impacts: Any) -> site_data.Grids | None:
        """The maps of a document's picture, of its heaviest terms."""
        order = sorted(zip((-impacts.data).tolist(), impacts.indices.tolist(), strict=True))
        dimensions = [dimension for _, dimension in order[: self.publication.map_terms]]
        if self.map_tower is None or document.picture is None or not dimensions:
            return None
        return site_data.compute_grids(self.map_tower, document.picture, dimensions)


def write_page(site: Path) -> int:
    """Writes the files of the page, its scripts as one; returns their bytes."""
    page = files("lexvl_plugins.serve").joinpath("page")
    html = page.joinpath("index.html").read_text(encoding="utf-8")
    classic = html.replace('<script type="module" src="page.js">', '<script defer src="page.js">')
    if classic == html:
        raise AssertionError("index.html names its script in another way")
    contents = {
        "index.html": classic.encode(),
        "page.js": join_scripts(page.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS).encode(),
        "page.css": page.joinpath("page.css").read_bytes(),
        "icon.svg": page.joinpath("icon.svg").read_bytes(),
    }
    for name, content in contents.items():
        (site / name).write_bytes(content)
    return sum(map(len, contents.values()))


def join_scripts(modules: Iterable[str]) -> str:
    """Modules as one script that a browser runs from a disk too, where it refuses modules."""
    plain = (re.sub(r"^(import .*\n|export (?=function|class|const))", "", module, flags=re.M) for module in modules)
    return '"use strict";\n(() => {\n' + "".join(plain) + "})();\n"


@cli.expand_options
def command(
    index: Annotated[Path, typer.Argument(help="Folder of an impact index.")],
    site: Annotated[Path, typer.Argument(help="Folder of the site; one with other files is refused.")],
    name: Annotated[str | None, typer.Option(help="Title of the page; default that of the index.")] = None,
    publication: Publication = Publication(),
    settings: cli.Settings = None,
    checkpoint: MovedCheckpoint = None,
    data_dir: cli.DataDir = None,
    device: cli.Device = "auto",
    overwrite: cli.Overwrite = False,
    style: cli.Style = "text",
    verbose: cli.Verbose = False,
) -> None:
    """Publish an index as static files: its search page works on any web server, and from a disk.

    Queries are bare words, as search --set mode=alpha reads them, with the same hits and scores.

    Example: python -m lexvl_plugins.serve.publish indexes/demo sites/demo
    """
    started = time.perf_counter()
    options = {**find_bag_mode(index_manifest(index).encoder.name), **cli.parse_settings(settings or ())}
    [served] = name_indexes([index], [checkpoint] if checkpoint else [], device, data_dir, options)
    with cli.progress_bar(f"publish {index}", None, "documents") as progress:
        rows = publish(replace(served, name=name or served.name), site, publication, overwrite, progress)
    cli.print_rows(
        {"site": str(site / "index.html"), **rows, "seconds": round(time.perf_counter() - started, 2)}, style
    )


if __name__ == "__main__":
    cli.run(command)
