"""MTEB: `mteb.evaluate(MTEBSearch(load_encoder("vdr", "lexvl-mini")), tasks=[...])` searches an index of ours.

It implements MTEB's SearchProtocol (mteb 2.26), for texts and images, by Lucene with integer impacts: the scores are
those that users get.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from lexvl_anserini.encoders.cards import CARDS
from lexvl_anserini.encoders.encoder import Encoder
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.machine import find_version
from lexvl_anserini.ground.records import Document, Topic
from lexvl_plugins.exchange.adapters.indexed_corpus import IndexedCorpus, collect_scores, read_title

if TYPE_CHECKING:
    from mteb.models import ModelMeta

# MTEB's category of a task, the modalities of queries and documents, and the direction of our encoders of pictures.
DIRECTIONS = {"t2i": "text-to-image", "i2t": "image-to-text"}


class MTEBSearch:
    """An encoder and its index as a search model of MTEB, `lexvl/<encoder>` in its results unless it has a name.

    The encoder is in the direction of the tasks (`direction="image-to-text"` where queries are images).
    """

    def __init__(self, model: Encoder, name: str | None = None):
        self.model, self.name = model, name or f"lexvl/{model.name}"
        self.pictures = Path(mkdtemp(prefix="lexvl-mteb-"))
        finalize(self, rmtree, self.pictures, ignore_errors=True)
        self.corpus: IndexedCorpus | None = None

    @cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """The model's entry in MTEB's results; MTEB sets its own where the model is of its registry."""
        from mteb.models import ModelMeta

        facts = {"name": self.name, "revision": get_revision(self.model), "modalities": ["image", "text"]}
        return ModelMeta.create_empty({**facts, "framework": ["PyTorch"], "similarity_fn_name": "dot"})

    def index(self, corpus: Any, *, task_metadata: Any, num_proc: int | None = None, **others: Any) -> None:
        """Encodes and indexes a task's corpus, in place of the one before; of `encode_kwargs`, `batch_size` counts."""
        batch_size = int((others.get("encode_kwargs") or {}).get("batch_size", 32))
        rows = self._read_rows(corpus, task_metadata, "document", batch_size)
        # `text` has the title and the body of a document, which some encoders read as two texts.
        documents = (
            Document(doc_id, read_title(row), row.get("body", row.get("text")), row.get("image"))
            for doc_id, row in rows
        )
        self.corpus = IndexedCorpus(self.model, documents, batch_size=batch_size)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **others: Any,
    ) -> dict[str, dict[str, float]]:
        """Finds the best `top_k` documents of each query, of its candidates where `top_ranked` has them."""
        if self.corpus is None:
            raise UsageError("MTEB searches before it indexes; call index first")
        rows = self._read_rows(queries, task_metadata, "query", self.corpus.batch_size)
        topics = [Topic(query_id, row.get("text"), row.get("image")) for query_id, row in rows]
        if top_ranked is None:
            return collect_scores(self.corpus.search(topics, top_k))
        return collect_scores(self.corpus.rank_among(topics, top_ranked, top_k))

    def _read_rows(
        self, dataset: Any, task_metadata: Any, side: str, batch_size: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the id, and the texts and the image of each row, as MTEB's own encoders get them."""
        # MTEB's own wrappers import it too; a test fails where a new version moves it.
        from mteb._create_dataloaders import create_dataloader
        from mteb.types import PromptType

        ids = enumerate(dataset["id"])
        task = {"task_metadata": task_metadata, "prompt_type": PromptType(side)}
        batches = create_dataloader(dataset, **task, batch_size=batch_size)
        for batch in batches:
            columns = {key: batch[key] for key in ("title", "body", "text", "image") if key in batch}
            for values in zip(*columns.values(), strict=True):
                number, row_id = next(ids)
                row = dict(zip(columns, values, strict=True))
                picture: Any = row.get("image")
                if hasattr(picture, "save"):  # a PIL image, which is kept without loss
                    row["image"] = str(path := self.pictures / side / f"{number}.png")
                    path.parent.mkdir(exist_ok=True)
                    picture.save(path)
                yield str(row_id), row


class PackagedSearch(MTEBSearch):
    """A packaged model, `lexvl/<checkpoint>` of a row of `cards.CARDS`, loaded in the direction of each task.

    `revision` has the first 40 digits of the checkpoint's digest; None for any. `mteb_models` has MTEB's entries.
    """

    def __init__(self, name: str, revision: str | None = None, *, encoder: str, device: str = "auto", **options: Any):
        organisation, _, checkpoint = name.partition("/")
        if organisation != "lexvl" or not checkpoint:
            raise UsageError(f"{name!r} is no packaged model; its name would be lexvl/ and a packaged checkpoint")
        self._load = partial(load_encoder, encoder, checkpoint, device=device, **options)
        super().__init__(self._load(), name)
        if revision not in (None, installed := get_revision(self.model)):
            raise UsageError(f"{name}: MTEB's entry has revision {revision}, the installed package has {installed}")

    def index(self, corpus: Any, *, task_metadata: Any, num_proc: int | None = None, **others: Any) -> None:
        """Indexes as `MTEBSearch.index`, by the encoder in the direction of the task."""
        category, pictures = task_metadata.category, CARDS[self.model.name].reads_images
        if category not in (DIRECTIONS if pictures else ("t2t",)):
            reads = f"has the categories {', '.join(DIRECTIONS)}" if pictures else "reads texts only"
            raise UsageError(f"{task_metadata.name} is of category {category!r}; {self.name} {reads}")
        if pictures and self.model.options["direction"] != DIRECTIONS[category]:
            self.model = self._load(direction=DIRECTIONS[category])
        super().index(corpus, task_metadata=task_metadata, num_proc=num_proc, **others)


def get_revision(model: Encoder) -> str:
    """Returns the revision in MTEB's results: 40 digits of the checkpoint's digest, else this package's version."""
    return (model.checkpoint_digest or find_version("lexvl-anserini") or "none")[:40]
