"""What a run over texts reads and writes: sides and their checkpoints by family, tokenised texts, validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexvl_anserini.encoders.checkpoints import sentence_layout
from lexvl_anserini.encoders.checkpoints.find import Checkpoint, find_checkpoint
from lexvl_anserini.encoders.families.dpr import CONTEXT, QUESTION
from lexvl_anserini.encoders.families.splade import ADDS
from lexvl_anserini.encoders.families.vdr import DOCUMENT_TOPK, SIDES
from lexvl_anserini.encoders.loading import Source
from lexvl_anserini.encoders.parts.backbones import quietly
from lexvl_anserini.encoders.parts.pretrained import read_bert_weights
from lexvl_anserini.encoders.parts.tokens import TokenColumns
from lexvl_anserini.ground.errors import UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_plugins.train.common.learner import Examples, StageInputs, choose_examples, shorten
from lexvl_plugins.train.common.tower_pair import TextStore, Tokenised, TowerPair, sparsify, split_positions
from lexvl_plugins.train.model_settings import AnyTower, TableSettings, TextPairSettings, TextSettings, TowerSettings
from lexvl_plugins.train.recipe import Recipe
from lexvl_plugins.train.run_folder import TEXT_FOLDER, WORDS, write_weights
from lexvl_plugins.train.splits import TRAINING, VALIDATION, Sources
from lexvl_plugins.train.texts import sides as text_sides
from lexvl_plugins.train.texts.query_passages import QueriesWithPassages, QueryBatches
from lexvl_plugins.train.words import make_tokenizer

Vdr = text_sides.TrainableVdr
Splade = text_sides.TrainableSplade
Dpr = text_sides.TrainableDpr


@dataclass(frozen=True)
class TextMaterial:
    """What all stages of a run over texts share: both sides, and by role queries with passages, tokenised."""

    data: Mapping[str, QueriesWithPassages]
    query: text_sides.TrainableText
    document: text_sides.TrainableText
    queries: Mapping[str, TextStore]
    passages: Mapping[str, TextStore]

    @classmethod
    def read(cls, recipe: Recipe, output: Path, sources: Sources) -> TextMaterial:
        """Loads or draws the sides and tokenises all texts."""
        model = recipe.model
        assert isinstance(model, TextPairSettings)
        queries_of = sources.queries
        torch.manual_seed(recipe.seed)
        query, document = make_text_sides(model, queries_of[TRAINING], output / WORDS)

        def store(side: text_sides.TrainableText, rows: list[Tokenised]) -> TextStore:
            return TextStore.make(rows, side.columns, side.reader.pad_id)

        queries = {role: store(query, query.read_queries(items.queries)) for role, items in queries_of.items()}
        passages: dict[str, TextStore] = {}
        for role, items in queries_of.items():
            # Held-out queries have the passages of the training queries.
            same = next((other for other in passages if queries_of[other].passages is items.passages), None)
            passages[role] = passages[same] if same else store(document, document.read_passages(items.passages))
        return cls(queries_of, query, document, queries, passages)

    @property
    def columns(self) -> TokenColumns:
        """The dimension of each token."""
        return self.document.columns

    def make_pair(self, recipe: Recipe, device: torch.device) -> TowerPair:
        """The pair that the stages train."""
        of_bags = any(stage.objective.learn_bag_temperature for stage in recipe.stages)
        return TowerPair(self.query, self.document, recipe.stages[0].objective.temperature, of_bags).to(device)

    def make_stage_inputs(self, recipe: Recipe, number: int, pair: TowerPair) -> StageInputs:
        """The batches of a stage, and the queries that validate."""
        plan, device = recipe.stages[number].optimisation, pair.log_temperature.device

        def read(role: str) -> tuple[QueriesWithPassages, TextStore, TextStore]:
            stores = self.queries[role], self.passages[role]
            queries, passages = (replace(store, device=device) for store in stores)
            return self.data[role], queries, passages

        batches = QueryBatches(*read(TRAINING), plan.batch_size, plan.negatives, recipe.seed, plan.bucket)
        if VALIDATION not in self.data:
            return StageInputs(batches, None, pick_examples(*read(TRAINING)))
        return StageInputs(batches, TextValidation(*read(VALIDATION)), pick_examples(*read(VALIDATION)))

    def save(self, recipe: Recipe, pair: TowerPair, folder: Path) -> None:
        """Writes the pair in the layout of its family."""
        model = recipe.model
        assert isinstance(model, TextPairSettings)
        query, document = pair.encoder_q.cpu().eval(), pair.encoder_p.cpu().eval()
        _, save = FAMILIES[model.kind]
        save(query, document, model, folder, getattr(torch, recipe.weights))


def pick_examples(data: QueriesWithPassages, queries: TextStore, passages: TextStore) -> Examples:
    """Some queries, each with its first positive."""
    chosen = choose_examples(len(data))
    positives = np.array([min(data.positives[place]) for place in chosen], dtype=np.int64)
    names = [shorten(data.queries[place]) for place in chosen]
    texts = [shorten(data.passages[place].contents) for place in positives]
    return Examples(queries.read_batch(chosen), passages.read_batch(positives), names, texts)


# Texts of one forward pass.
BATCH = 128
NDCG_CUT, RECALL_CUTS = 10, (10, 100)


@dataclass(frozen=True)
class TextValidation:
    """Queries that do not train, over all passages of the data; their tokenised texts."""

    data: QueriesWithPassages
    queries: TextStore
    passages: TextStore

    @torch.inference_mode()
    def measure(self, pair: TowerPair, model: TextPairSettings) -> dict[str, float]:
        """nDCG@10 and recall; of a lexical pair also with bags of tokens as queries (alpha) or as passages (beta)."""
        query_topk, topk = model.kept
        batches = [self.queries.read_batch(chosen) for chosen in split_positions(len(self.queries), BATCH)]
        encoded = torch.cat([pair.encoder_q(batch).float() for batch in batches])
        queries = sparsify(encoded, query_topk) if model.lexical else encoded
        bags = torch.cat([batch.bag.float() for batch in batches])
        modes: dict[str, list[Tensor]] = {}
        terms = 0
        for chosen in split_positions(len(self.passages), BATCH):
            batch = self.passages.read_batch(chosen)
            vectors = pair.encoder_p(batch).float()
            if model.lexical:
                vectors = sparsify(vectors, topk)
                terms += int((vectors > 0).sum())
                modes.setdefault("alpha_", []).append((bags @ vectors.T).cpu())
                modes.setdefault("beta_", []).append((queries @ batch.bag.float().T).cpu())
            modes.setdefault("", []).append((queries @ vectors.T).cpu())
        figures_by_name: dict[str, float] = {}
        for mode in sorted(modes):
            figures = self.compute_figures(torch.cat(modes[mode], dim=1)).items()
            figures_by_name |= {f"{mode}{name}": one for name, one in figures if name.startswith("nDCG") or not mode}
        if model.lexical:
            figures_by_name["mean_query_terms"] = round(float((queries > 0).sum(dim=1).float().mean()), 1)
            figures_by_name["mean_passage_terms"] = round(terms / len(self.passages), 1)
        return figures_by_name

    def score(self, figures: Mapping[str, float]) -> float:
        """nDCG@10."""
        return figures[f"nDCG@{NDCG_CUT}"]

    def compute_figures(self, scores: Tensor) -> dict[str, float]:
        """Means over queries, from scores [Q, n]; equal scores in the order of the passages' ids.

        A passage whose id is the query's does not count, as in BEIR.
        """
        if not torch.isfinite(scores).all():
            raise UsageError("validation: scores that are no numbers; lower the learning rate or the clip")
        place = {passage.doc_id: number for number, passage in enumerate(self.data.passages)}
        values: dict[str, list[float]] = {f"nDCG@{NDCG_CUT}": [], **{f"Recall@{k}": [] for k in RECALL_CUTS}}
        for row, query_id, relevant in zip(scores, self.data.ids, self.data.positives, strict=True):
            if query_id in place:
                row = row.index_fill(0, torch.tensor([place[query_id]]), -torch.inf)
            ranked = torch.argsort(row, descending=True, stable=True)[: max(NDCG_CUT, *RECALL_CUTS)].tolist()
            gains = [relevant.get(number, 0) for number in ranked]
            values[f"nDCG@{NDCG_CUT}"].append(compute_ndcg(gains, relevant.values()))
            for k in RECALL_CUTS:
                values[f"Recall@{k}"].append(sum(number in relevant for number in ranked[:k]) / len(relevant))
        return {name: round(float(np.mean(of_queries)), 4) for name, of_queries in values.items()}


def compute_ndcg(gains: Iterable[int], relevant: Iterable[int]) -> float:
    """nDCG@10 with the relevance as gain, from the gains in rank order and the relevances of all relevant passages."""
    discounts = 1 / np.log2(np.arange(2, NDCG_CUT + 2))
    ideal = np.array(sorted(relevant, reverse=True)[:NDCG_CUT], dtype=float)
    gains_at_cut = np.array(list(gains)[:NDCG_CUT], dtype=float)
    return float((gains_at_cut @ discounts[: len(gains_at_cut)]) / (ideal @ discounts[: len(ideal)]))


# The roles of the two sides; DPR's folders, and the routes of a SPLADE folder with two networks, have these names.
ROLES = ("query", "document")
# The layer of a BERT that VDR does not read.
POOLER = "bert_model.pooler."


def make_text_sides(
    model: TextPairSettings, data: QueriesWithPassages, folder: Path
) -> tuple[text_sides.TrainableText, text_sides.TrainableText]:
    """The sides of queries and of documents, which are one object where a model has one network.

    New weights are drawn from the random state of torch; `folder` gets fresh networks and their vocabulary.
    """
    load, _ = FAMILIES[model.kind]
    sides = []
    for role, settings in zip(ROLES, model.towers, strict=False):
        if isinstance(settings, TableSettings):
            continue
        checkpoint = prepare_checkpoint(settings, data.texts, folder / role)
        both = load(Source(checkpoint, torch.device("cpu")), settings.max_length)
        for side in both:
            for module in side.modules():
                if isinstance(module, nn.Dropout) and settings.dropout is not None:
                    module.p = settings.dropout
            side.reader = replace(side.reader, padding=model.padding)
        sides.append(both)
    query, document = sides[0][0], sides[-1][1]
    if isinstance(model.query, TableSettings):
        assert isinstance(document, text_sides.TrainableSplade), "the settings refuse other kinds"
        query = text_sides.make_table_side(model.query, document, data.passages)
    if model.projection == "own":
        assert isinstance(document, text_sides.TrainableVdr), "the settings refuse other kinds"
        document.untie()
    if model.lexical and query.columns.vocabulary.digest != document.columns.vocabulary.digest:
        raise UsageError(f"kind {model.kind}: query and document have different vocabularies; name one tokenizer's")
    return query, document


def prepare_checkpoint(settings: AnyTower, texts: Callable[[], Iterable[str]], folder: Path) -> Checkpoint:
    """The checkpoint of a tower; a fresh network is written into a folder first, with random weights."""
    if not isinstance(settings, TextSettings):
        return find_checkpoint(settings.checkpoint)
    import transformers

    tokenizer = make_tokenizer(settings.tokenizer, texts(), settings.words, folder, settings.max_length)
    config = transformers.BertConfig(**settings.shape(len(tokenizer)))
    with quietly():
        transformers.BertForMaskedLM(config).save_pretrained(str(folder))
    return find_checkpoint(str(folder))


def save_vdr(query: Vdr, document: Vdr, model: TextPairSettings, folder: Path, kind: torch.dtype) -> None:
    """VDR's layout of 2024: config.json, model.safetensors, and a folder with tokenizer and backbone of each side."""
    shared = query is document
    state: dict[str, Tensor] = {}
    config: dict[str, Any] = {}
    for prefix, side, topk in zip(SIDES, (query, document), model.kept, strict=True):
        name = TEXT_FOLDER if shared else f"{TEXT_FOLDER}_{prefix}"
        side.reader.tokenizer.save_pretrained(str(folder / name))
        side.bert_model.config.save_pretrained(str(folder / name))
        reading = {"max_len": side.reader.max_length, "padding": side.reader.padding, "pooling": "max"}
        terms = {"norm": side.normalise, "shift_vocab_num": int(side.columns.tokens[0]), "topk": topk}
        config[prefix] = {"type": "vdr", "model_id": name, **reading, **terms}
        if not (shared and state):
            weights, entry = find_changes(side, model, prefix) if model.saved == "changed" else (side.state_dict(), {})
            config[prefix] |= entry
            state |= {f"{prefix}.{key}": value for key, value in weights.items()}
    write_weights(state, folder, kind)
    cut = {DOCUMENT_TOPK: model.kept[1]} if shared and model.kept[0] != model.kept[1] else {}
    write_json(folder / "config.json", {"shared_encoder": shared, **cut, **config})


def find_changes(side: Vdr, model: TextPairSettings, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of a side that its packaged network does not have, and the entry that names the network."""
    tower = model.towers[0 if prefix == SIDES[0] else -1]
    assert isinstance(tower, TowerSettings), "the settings refuse a fresh network"
    weights, digest = read_bert_weights(find_checkpoint(tower.checkpoint))
    before = {f"bert_model.{key}": value for key, value in weights.items()}
    states = ((key, value) for key, value in side.state_dict().items() if not key.startswith(POOLER))
    weights_of_side = {k: v for k, v in states if k not in before or not torch.equal(v.cpu(), before[k])}
    return weights_of_side, {"backbone": {"checkpoint": tower.checkpoint, "digest": digest}}


def save_splade(query: Any, document: Splade, model: TextPairSettings, folder: Path, kind: torch.dtype) -> None:
    """The layout of sentence-transformers' SparseEncoder: one network, or a router with one for each side."""
    sentence_layout.write_sparse_encoder(folder, model.topk)
    types = "sentence_transformers.sparse_encoder.models"
    if query is document:
        save_masked_lm(document, folder, kind)
        sentence_layout.write_splade_pooling(folder / sentence_layout.POOLING_FOLDER, len(document.columns.vocabulary))
        paths = {"": f"{types}.MLMTransformer", sentence_layout.POOLING_FOLDER: f"{types}.SpladePooling"}
        sentence_layout.write_modules(paths, folder)
        return
    parts: dict[str, list[str]] = {}
    for role, side in zip(ROLES, (query, document), strict=True):
        if isinstance(side, text_sides.TrainableTable):
            parts[role] = [f"{role}_0_SparseStaticEmbedding"]
            # The table as a SparseStaticEmbedding, whose tokens never add up, and the tokenizer.
            inner = folder / parts[role][0]
            inner.mkdir()
            write_weights({"weight": side.table().detach()}, inner, kind)
            write_json(inner / "config.json", {"frozen": False, **({ADDS: True} if side.adds else {})})
            side.reader.tokenizer.save_pretrained(str(inner))
            continue
        parts[role] = [f"{role}_0_MLMTransformer", f"{role}_1_SpladePooling"]
        save_masked_lm(side, folder / parts[role][0], kind)
        sentence_layout.write_splade_pooling(folder / parts[role][1], len(side.columns.vocabulary))
    names = {part: f"{types}.{part.rpartition('_')[2]}" for listed in parts.values() for part in listed}
    parameters = {"default_route": "document", "allow_empty_key": True}
    write_json(folder / "router_config.json", {"types": names, "structure": parts, "parameters": parameters})
    sentence_layout.write_modules({"": "sentence_transformers.models.Router"}, folder)


def save_masked_lm(side: text_sides.TrainableSplade, folder: Path, kind: torch.dtype) -> None:
    """A masked LM of transformers with its tokenizer and its largest number of tokens."""
    whole = deepcopy(side).to(kind)
    whole.model.set_output_embeddings(whole.decoder)
    with quietly():
        whole.model.save_pretrained(str(folder))
    side.reader.tokenizer.save_pretrained(str(folder))
    sentence_layout.write_limits(folder, side.reader.max_length)


def save_dpr(query: Dpr, document: Dpr, model: TextPairSettings, folder: Path, kind: torch.dtype) -> None:
    """Two folders of transformers, `query` and `document`, as DPR's loader reads them."""
    import transformers

    for role, prefix, side in zip(ROLES, (QUESTION, CONTEXT), (query, document), strict=True):
        bert, projection = side.bert_model, side.projection
        width = projection.out_features if isinstance(projection, nn.Linear) else 0
        known = ("model_type", "architectures")
        settings = {key: value for key, value in bert.config.to_dict().items() if key not in known}
        transformers.DPRConfig(**{**settings, "projection_dim": width}).save_pretrained(str(folder / role))
        side.reader.tokenizer.save_pretrained(str(folder / role))
        state = {f"{prefix}.bert_model.{key}": value for key, value in bert.state_dict().items()}
        state |= {f"{prefix}.encode_proj.{key}": value for key, value in projection.state_dict().items()}
        write_weights(state, folder / role, kind)


def save_sentence(query: Any, document: Any, model: TextPairSettings, folder: Path, kind: torch.dtype) -> None:
    """The layout of sentence-transformers; queries and documents have one network."""
    with quietly():
        deepcopy(document.model).to(kind).save(str(folder), create_model_card=False)


# From a source and the largest number of tokens to the sides of queries and of documents, which may be one; and the two
# sides into an empty folder, as weights of a type.
Load = Callable[[Source, int | None], tuple[text_sides.TrainableText, text_sides.TrainableText]]
Save = Callable[[Any, Any, TextPairSettings, Path, torch.dtype], None]
FAMILIES: Mapping[str, tuple[Load, Save]] = {
    "vdr": (text_sides.load_vdr_sides, save_vdr),
    "svdr": (text_sides.load_vdr_sides, save_vdr),
    "splade": (text_sides.load_splade_sides, save_splade),
    "dpr": (text_sides.load_dpr_sides, save_dpr),
    "sentence": (text_sides.load_sentence_sides, save_sentence),
}
