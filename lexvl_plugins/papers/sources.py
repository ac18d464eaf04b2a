"""Where the papers' collections and checkpoints are from, their sizes, about what encoding costs; means and units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lexvl_eval.measures.averages import AVERAGES

BEIR = "BEIR's archive, fetched when a row needs it"
KARPATHY = "Karpathy's caption_datasets.zip"
LIMIT = "GitHub: google-deepmind/limit"
VIDORE = "hub: `hf download --repo-type dataset vidore/<name> --local-dir <data folder>/vidore/<name>`"
HUB = "model hub, fetched when a row needs it"


class TestCollection(NamedTuple):
    """The documents of a collection, the topics of its split, and where it is from; of captions: images, captions."""

    documents: int
    topics: int
    origin: str = BEIR


COLLECTIONS: Mapping[str, TestCollection] = {
    "beir/arguana/test": TestCollection(8_674, 1_406),
    "beir/climate-fever/test": TestCollection(5_416_593, 1_535),
    "beir/dbpedia-entity/test": TestCollection(4_635_922, 400),
    "beir/fever/test": TestCollection(5_416_568, 6_666),
    "beir/fiqa/test": TestCollection(57_638, 648),
    "beir/hotpotqa/test": TestCollection(5_233_329, 7_405),
    "beir/msmarco/dev": TestCollection(8_841_823, 6_980),
    "beir/nfcorpus/test": TestCollection(3_633, 323),
    "beir/nq/test": TestCollection(2_681_468, 3_452),
    "beir/quora/test": TestCollection(522_931, 10_000),
    "beir/scidocs/test": TestCollection(25_657, 1_000),
    "beir/scifact/test": TestCollection(5_183, 300),
    "beir/scifact/train": TestCollection(5_183, 809),
    "beir/trec-covid/test": TestCollection(171_332, 50),
    "beir/webis-touche2020/test": TestCollection(382_545, 49),
    "beir/limit/test": TestCollection(50_000, 1_000, LIMIT),
    "beir/limit-small/test": TestCollection(46, 1_000, LIMIT),
    "vidore/biomedical_lectures_v2,english/test": TestCollection(1_016, 160, VIDORE),
    "vidore/economics_reports_v2,english/test": TestCollection(452, 58, VIDORE),
    "vidore/esg_reports_human_labeled_v2,english/test": TestCollection(1_538, 52, VIDORE),
    "vidore/esg_reports_v2,english/test": TestCollection(1_538, 57, VIDORE),
    "demo/test": TestCollection(1_000, 5_000, "the package"),
    "demo/val": TestCollection(1_000, 5_000, "`python tools/world draw val` in a checkout"),
    "flickr8k/train": TestCollection(6_000, 30_000, f"{KARPATHY} and Flickr8k's images (University of Illinois)"),
    "flickr8k/val": TestCollection(1_000, 5_000, f"{KARPATHY} and Flickr8k's images (University of Illinois)"),
    "coco/test": TestCollection(5_000, 25_010, f"{KARPATHY} and COCO's val2014.zip"),
    "flickr30k/test": TestCollection(1_000, 5_000, f"{KARPATHY} and Flickr30k's images (University of Illinois)"),
}


class ImageSet(NamedTuple):
    """The images of the test split of a set of classes, and those that a linear probe trains on."""

    test: int
    train: int = 0


ARCHIVE = "its authors' archive, unpacked in the data folder (docs/measuring.md)"

IMAGE_SETS: Mapping[str, ImageSet] = {
    "aircraft": ImageSet(3_333, 6_667), "caltech101": ImageSet(8_677), "cars": ImageSet(8_041, 8_144),
    "cifar10": ImageSet(10_000, 50_000), "cifar100": ImageSet(10_000, 50_000), "dtd": ImageSet(1_880, 3_760),
    "eurosat": ImageSet(27_000), "flowers102": ImageSet(6_149, 2_040), "food101": ImageSet(25_250, 75_750),
    "imagenet": ImageSet(50_000, 1_281_167), "pets": ImageSet(3_669, 3_680), "resisc45": ImageSet(31_500),
    "sun397": ImageSet(19_850, 19_850), "svhn": ImageSet(26_032, 73_257),
}  # fmt: skip

JOINT_FOLDER = "the authors' folder on Google Drive, which their repository names"

# Checkpoints that are files, which no hub has. Where several models have one file name, the model precedes it.
FILES: Mapping[str, str] = {
    "blip_coco_retrieval.pth": "GitHub: salesforce/LAVIS, models of image-text retrieval",
    "ckpt_<iteration>.pth.tar": "the authors' folder on Google Drive, which GitHub: yuxiaochen1103/FDT names",
    **{
        f"joint-{model}-{corpus}/checkpoint_best.ckpt": JOINT_FOLDER
        for model in ("blip", "albef")
        for corpus in ("coco", "flickr30k")
    },
}

# A published checkpoint -> SHA-256 of its weight file on the hub, where several independent sources agree on it.
DIGESTS: Mapping[str, str] = {
    "bert-base-uncased": "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
    "openai/clip-vit-base-patch32": "a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f",
}

# An id of the hub that no source confirms -> what is confirmed.
D2S_NAMES = "its README names lsr42/d2s_mscoco-blip-dense_q_reg_0.001_d_reg_0.001"
UNCONFIRMED: Mapping[str, str] = {
    "jzhoubu/vdr-msmarco": "its authors publish vsearch/svdr-msmarco, vsearch/vdr-nq and vsearch/vdr-cross-modal",
    "lsr42/d2s_flickr30k-blip-dense_q_reg_0.001_d_reg_0.001": D2S_NAMES,
    "lsr42/d2s_mscoco-albef-dense_q_reg_0.001_d_reg_0.001": D2S_NAMES,
    "lsr42/d2s_flickr30k-albef-dense_q_reg_0.001_d_reg_0.001": D2S_NAMES,
}


class DocumentCost(NamedTuple):
    """About what a document costs: numbers in its vector, bytes of one in shards and index, documents per CPU second.

    The rates are those of one core of a usual CPU, texts of mixed lengths and pictures; a GPU is some hundred times
    as fast. Topics have the rate of documents unless they have their own.
    """

    numbers: int
    bytes: float
    documents_per_s: float
    topics_per_s: float = 0.0


# Postings: 2.5 bytes in Parquet shards, 2.3 in Lucene's files and as many in the resident ones (docs/performance.md).
POSTING, FLOAT = 7.0, 8.0
TEXTS_PER_S, IMAGES_PER_S = 5.0, 3.0
# The packaged checkpoints are small: so many times as fast.
PACKAGED_SPEED = 10.0
# A training of a row that trains its own weights.
TRAINING_S = 40.0
# A suite that compares systems.
SUITE_S = 120.0

DOCUMENT_COSTS: Mapping[str, DocumentCost] = {
    "bag-of-tokens": DocumentCost(90, POSTING, 1000),
    "bertlex": DocumentCost(768, POSTING, TEXTS_PER_S),
    "blip": DocumentCost(256, FLOAT, IMAGES_PER_S),
    "bm25": DocumentCost(150, POSTING, 5000),
    **dict.fromkeys(("clip", "clip-twin"), DocumentCost(512, FLOAT, IMAGES_PER_S)),
    "d2s": DocumentCost(150, POSTING, 1000),
    "dense-crossmodal": DocumentCost(256, FLOAT, 25.0, 100.0),
    "dpr": DocumentCost(768, FLOAT, TEXTS_PER_S),
    "fdt": DocumentCost(512, FLOAT, IMAGES_PER_S),
    "joint": DocumentCost(150, POSTING, 1000),
    "lexlip": DocumentCost(150, POSTING, IMAGES_PER_S),
    "splade": DocumentCost(200, POSTING, TEXTS_PER_S),
    "stair": DocumentCost(150, POSTING, IMAGES_PER_S),
    "svdr": DocumentCost(90, POSTING, 1000, TEXTS_PER_S),
    # A page of 16 tiles takes 91 s.
    "v-splade": DocumentCost(550, POSTING, 0.011, 1000),
    "vdr": DocumentCost(768, POSTING, TEXTS_PER_S),
    "vdr-crossmodal": DocumentCost(512, POSTING, IMAGES_PER_S),
}


class Protocol(NamedTuple):
    """What a paper says about its measurement, None for nothing; `tokens` is the most that a query has."""

    paper: str
    items: int | None
    queries: int | None
    tokens: int | None
    measures: Mapping[str, Sequence[str]]

    @property
    def depth(self) -> int:
        """Hits per query: the largest cut of the measures."""
        return max(int(name.partition("@")[2]) for names in self.measures.values() for name in names)


RATES = ("HitRate@10", "HitRate@25")
PROTOCOLS: Mapping[str, Protocol] = {
    "vdr-g": Protocol("VDR, appendix G", 100_000, 1000, 77, {"image": ("HitRate@1",), "text": ("nDCG@10",)}),
    "stair-9": Protocol("STAIR, table 9", 1_000_000, None, None, {"image": RATES, "text": RATES}),
    "lexlip": Protocol("LexLIP, ICCV 2023", None, None, None, {"image": ("HitRate@1", "HitRate@10"), "text": RATES}),
}


# Corpora in BEIR's layout that are not part of BEIR.
AS_BEIR = ("limit", "limit-small")

# Corpora that nobody publishes: of papers, and the judged pool of TREC DL 2019.
PRIVATE = ("coco-1m", "msmarco-dl19-pool")

SPLITS = ("dev", "test", "train", "val")

FDT_10 = ("cifar10", "cifar100", "food101", "pets", "flowers102", "sun397", "cars", "dtd", "caltech101", "aircraft")

# Means that papers print, and what they are means of.
MEANS_OF_CORPORA: Mapping[str, tuple[str, ...]] = {
    **{name: AVERAGES[name] for name in ("beir-12", "beir-13")},
    "vidore-2": tuple(name.removesuffix(" text-to-image") for name in AVERAGES["vidore-2"]),
}
MEANS_OF_CLASSES: Mapping[str, tuple[str, ...]] = {
    "zero-shot-9": (*(name for name in FDT_10 if name not in ("cars", "aircraft")), "imagenet"),
    "linear-probe-10": FDT_10,
}
MEANS: Mapping[str, tuple[str, ...]] = {**MEANS_OF_CORPORA, **MEANS_OF_CLASSES}


# What the terms of a collection are of -> the direction in which it is the documents.
SIDES: Mapping[str, str] = {"images": "text-to-image", "texts": "image-to-text"}

# Measures of tasks over the documents of a collection.
OF_DOCUMENTS: Mapping[str, tuple[str, ...]] = {
    "sparsity": (
        *("query terms", "document terms", "FLOPS", "evenness"),
        *("terms of the shortest quarter", "terms of the longest quarter"),
    ),
    "distribution": tuple(
        f"{side} {name}" for side in SIDES for name in ("mean", "median", "upper whisker", "first 100")
    ),
    "latency": ("queries per second", "ms per query", "dense ms per query", "times faster", "times smaller"),
}

UNITS: Mapping[str, str] = {
    "%": "100 times the measure", "1": "the measure itself, a weight or a rate", "count": "a number of things",
    "M": "millions", "x": "times as much", "tokens": "tokens of a text", "words": "words of a text",
    "queries/s": "queries per second", "ms": "milliseconds", "GHz": "clock of a processor", "hours": "hours",
    "GB": "gigabytes",
}  # fmt: skip

STATUSES: Mapping[str, str] = {
    "printed": "the paper prints it",
    "secondary": "another text reports that the paper prints it",
    "reproduced": "others measured it with the published weights",
    "derived": "computed from printed numbers, or from published files",
}
