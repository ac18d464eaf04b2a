"""What a part needs: weights and a corpus or images, on this machine or elsewhere; disk and time."""

from __future__ import annotations

from pathlib import Path

from lexvl_anserini.data.corpora.beir import find_beir
from lexvl_anserini.data.dataset import data_root, dataset_of
from lexvl_anserini.data.fetch import BEIR_ARCHIVES
from lexvl_anserini.ground.errors import LexvlError
from lexvl_anserini.ground.manifest import CorpusRef

from .prepared import corpus_of, needed_weights, prepare
from .quantities import PRIVATE
from .rows import Need, PartCost, RowPart, Workplace
from .sources import ARCHIVE, COLLECTIONS, DOCUMENT_COSTS, HUB, IMAGE_SETS, TEXTS_PER_S

# Encoders that read stored vectors of images and captions.
OF_VECTORS = ("d2s", "joint")
STORED = "embeddings:"


def needs_of_retrieval(part: RowPart, place: Workplace) -> list[Need]:
    """The weights and the corpus of a part."""
    return [*needed_weights(part, place), needed_corpus(part, place)]


def needed_corpus(part: RowPart, place: Workplace) -> Need:
    """The corpus of a part, and whether it is here; nothing is fetched."""
    ref = corpus_of(part, place)
    if part.data in PRIVATE and part.data not in place.corpora:
        return Need("data", part.data, False, f"not published; --corpus {part.data}=CORPUS names yours", public=False)
    if part.system is not None and part.system.encoder in OF_VECTORS and not ref.name.startswith(STORED):
        how = f"--corpus {part.data}={STORED}FOLDER[,COLUMN] names them"
        origin = f"of the dense model that the head was trained on; {how}"
        return Need("data", f"vectors of {part.data}", False, origin, public=False)
    if ref.name.startswith(STORED):
        where = ref.name.removeprefix(STORED).partition(",")[0]
        here = Path(where).expanduser().is_dir()
        return Need("data", ref.name, here, HUB, fetchable=not where.startswith(("/", ".", "~")))
    if ref.name.startswith("beir/"):
        name = ref.name.removeprefix("beir/")
        folder = find_beir(name, ref.data_dir)
        here = folder is not None and (folder / "qrels" / f"{ref.split}.tsv").is_file()
        return Need("data", part.data, here, COLLECTIONS[part.data].origin, folder is None and name in BEIR_ARCHIVES)
    if part.data in place.corpora:
        return Need("data", ref.name, can_be_read(ref), f"--corpus names it for {part.data}, and it cannot be read")
    return Need("data", part.data, can_be_read(ref), COLLECTIONS[part.data].origin)


def can_be_read(ref: CorpusRef) -> bool:
    """True if the first document and the first topic of a corpus are here; either may be an image."""
    try:
        dataset = dataset_of(ref)
        return all(next(stream(), None) is not None for stream in (dataset.documents, dataset.topics))
    except LexvlError:
        return False


def cost_of_retrieval(part: RowPart, place: Workplace) -> PartCost | None:
    """Disk and time of a part; None where it has no weights, or its collection is not public."""
    work = prepare(part, place)
    if work is None or part.data not in COLLECTIONS:
        return None
    options, collection = work.weights.options, COLLECTIONS[part.data]
    one = DOCUMENT_COSTS["vdr" if options.get("mode") == "full" else work.system.encoder]
    sizes = (collection.documents, collection.topics)
    documents, topics = reversed(sizes) if part.task == "image-to-text" else sizes
    documents = min(documents, place.limit or documents)
    size = documents * int(options.get("topk", one.numbers)) * one.bytes
    topics_s = topics / (one.topics_per_s or one.documents_per_s) + topics * work.system.rerank / TEXTS_PER_S
    return PartCost(work.names.documents, size, documents / one.documents_per_s, topics_s)


def needs_of_classification(part: RowPart, place: Workplace) -> list[Need]:
    """The weights and the images of a part."""
    name = place.corpora.get(part.data, part.data)
    where = Path(name.partition(":")[2] or name) if part.data in place.corpora else data_root(place.data_dir) / name
    return [*needed_weights(part, place), Need("data", name, where.expanduser().exists(), ARCHIVE)]


def cost_of_classification(part: RowPart, place: Workplace) -> PartCost | None:
    """The time of a part; None where it has no weights. It writes no vectors."""
    work = prepare(part, place)
    if work is None:
        return None
    own = IMAGE_SETS[part.data]
    images = [min(number, place.limit or number) for number in own[: 2 if part.task == "linear-probe" else 1]]
    return PartCost(work.names.run, 0, sum(images) / DOCUMENT_COSTS[work.system.encoder].documents_per_s, 0)
