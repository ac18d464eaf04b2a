"""A stock impact index gets a manifest, and is searched as ours: terms, expressions, explanations, exact lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lexvl_anserini.data.checks import check_id
from lexvl_anserini.engines import jvm
from lexvl_anserini.engines.index_folder import RESIDENT, is_index, read_commit_id, read_version
from lexvl_anserini.engines.jvm import raise_java_errors
from lexvl_anserini.engines.lucene.engine import LuceneEngine
from lexvl_anserini.engines.lucene.fields import get_reader, open_whole_index
from lexvl_anserini.engines.resident.choosing import read_resident_files
from lexvl_anserini.engines.resident.packing import write_resident
from lexvl_anserini.engines.verifying import change_index
from lexvl_anserini.ground.claims import Claim, claim
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.manifest import (
    MANIFEST,
    Counts,
    EncodedCorpus,
    LayoutEntry,
    Manifest,
    read_manifest,
    write_manifest,
)
from lexvl_anserini.ground.quantise import Quantiser
from lexvl_anserini.ground.records import VOCABULARY, ImpactQuery, Vocabulary
from lexvl_anserini.shards.reading import MAX_IMPACT
from lexvl_plugins.exchange.ciff_writing import Census, take_census
from lexvl_plugins.exchange.importing import ImportSettings, find_columns, keep_integers


def adopt_index(index: Path, settings: ImportSettings = ImportSettings(), overwrite: bool = False) -> Manifest:
    """Gives a stock index manifest.json, vocab.txt and resident postings, after reading all of it; or nothing changes.

    `settings` has what the index does not name; `overwrite` replaces a manifest that says something else.
    """
    if is_index(index):
        raise UsageError(f"{index}: an index that python -m lexvl_anserini.index built, which needs no other manifest")
    if not any(index.glob("segments_*")):
        raise ArtefactError(f"{index}: no Lucene index (no file segments_N in it)")
    if (version := read_version(index)) and version.created < min(jvm.LUCENE_LINES):
        steps = f"lexvl export-ciff {index} FILE.ciff; lexvl import FILE.ciff --output SHARDS; lexvl index SHARDS"
        why = f"created by Lucene {version.created}, which stores ids otherwise"
        raise ArtefactError(f"{index}: {why}; with Pyserini 1.6: {steps}")
    # Before the index is read: the commit of Lucene is what identifies its documents.
    request = settings.make_request(index.resolve().name, read_commit_id(index) or "")
    quantiser = keep_integers(Quantiser.from_json(request.quantiser))
    request = replace(request, quantiser=quantiser.to_json(), layout=LayoutEntry())
    if (index / MANIFEST).is_file():
        stored = read_manifest(index)
        decision = claim(index, "a manifest", _select_compared(request), _select_compared(stored), overwrite)
        if decision is Claim.DONE and read_resident_files(index):
            return stored
    jvm.start()
    with raise_java_errors(f"{index}: damaged, or no Lucene index of Anserini"):
        with open_whole_index(index) as whole:
            whole.check_integrity()
            twice = whole.duplicate()
        if twice is not None:
            raise ArtefactError(f"{index}: document id {twice!r} occurs twice; ids must be distinct")
        with get_reader(index) as reader:
            facts = take_census(index, reader)
    manifest, vocabulary = _describe(index, facts, settings, request)
    _check_scores(index, facts, manifest)
    with change_index(index.resolve()) as part:
        vocabulary.write(part / VOCABULARY)
        write_manifest(part, manifest)
        # The name is a link to the file of the older index.
        (part / RESIDENT).unlink(missing_ok=True)
        write_resident(part, facts.most)
    return manifest


def _select_compared(manifest: Manifest) -> dict[str, Any]:
    """Selects what two manifests of an adopted index are compared by."""
    corpus = {key: value for key, value in manifest.corpus.items() if key != "documents"}
    return {"encoder": manifest.encoder.without_places(), "corpus": corpus, "quantiser": dict(manifest.quantiser)}


def _describe(index: Path, facts: Census, settings: ImportSettings, request: Manifest) -> tuple[Manifest, Vocabulary]:
    """Makes the manifest and the vocabulary of an index that was read."""
    for wrong, problem in (
        (facts.deleted, f"{facts.deleted:,} deleted documents in it; merge its segments, or build it again"),
        (not facts.postings, "no posting in the field contents; expected an index of impacts as Anserini builds"),
        (facts.most > MAX_IMPACT, f"an impact of {facts.most:,}, above {MAX_IMPACT:,} up to which scores are exact"),
    ):
        if wrong:
            raise ArtefactError(f"{index}: {problem}")
    for doc_id in facts.ids:
        check_id(doc_id.decode(), str(index))
    terms = [term.decode() for term in facts.terms]
    vocabulary = Vocabulary(terms, str(index)) if settings.model is None else settings.model.vocabulary
    find_columns(terms, vocabulary)
    empty = int((facts.lengths == 0).sum())
    counts = Counts(documents=len(facts.ids), empty=empty, postings=facts.postings, max_impact=facts.most)
    corpus = EncodedCorpus({**request.corpus, "documents": counts.documents})
    return replace(request, counts=counts, vocabulary=vocabulary.to_json(), corpus=corpus), vocabulary


def _check_scores(index: Path, facts: Census, manifest: Manifest) -> None:
    """Refuses an index that our engine cannot search: the scores of one term are its impacts."""
    term = facts.terms[0].decode()
    engine = LuceneEngine(index, manifest)
    try:
        [hits] = engine.search([ImpactQuery("first term", {term: 1})], 10)
        for hit in hits:
            if engine.impacts(hit.doc_id, [term]) != {term: hit.score}:
                raise ArtefactError(f"{index}: document {hit.doc_id!r} has another score than the impact of {term!r}")
        engine.verify()
    finally:
        engine.close()
