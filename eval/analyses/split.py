"""Topics in seeded halves or folds: `python -m eval.analyses.split --topics beir/scifact/test --output splits/scifact`.

Each part is a file of topics (BEIR's `queries.jsonl`), which `search --topics` reads, and a file of their judgements in
TREC's format, which `score --qrels` reads. Files of a format may be joined: `cat fold[2-5].qrels` has all but the
first fold. `tune --split-seed` draws the same halves and folds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import orjson
import typer

from lexvl_anserini.cli import DataDir, Overwrite, Style, Verbose, corpus_names, print_rows, run
from lexvl_anserini.ground.claims import refuse_existing
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.files import new_folder
from lexvl_anserini.ground.manifest import CorpusRef
from lexvl_anserini.ground.records import Qrel, Topic
from lexvl_anserini.queries.query_source import load_topics

from .. import options
from ..measures.inputs import JudgementSource, read_judgements

# Not __name__, which is "__main__" when the module runs as the command.
log = logging.getLogger("lexvl_eval.split")


def drawn_parts(query_ids: Iterable[str], label: str, seed: int, folds: int | None = None) -> list[list[str]]:
    """Distinct topics in two halves, of which the first has the odd topic, or in so many folds.

    Their order is that of SHA-256 of `<seed>:<query_id>`: a half is what it begins or ends with, a fold every Nth.

    Raises:
        DataError: fewer topics than parts.
    """
    distinct, parts = set(query_ids), folds or 2
    if len(distinct) < parts:
        what = f"{folds} folds" if folds else "two halves"
        raise DataError(f"{label}: {len(distinct)} topics have judgements; {what} need {parts} or more")
    drawn = sorted(distinct, key=lambda query_id: sha256(f"{seed}:{query_id}".encode()).digest())
    if folds:
        return [drawn[number::folds] for number in range(folds)]
    middle = (len(drawn) + 1) // 2
    return [drawn[:middle], drawn[middle:]]


def write_parts(
    folder: Path, name: str, parts: Sequence[Sequence[str]], topics: Sequence[Topic], qrels: Sequence[Qrel]
) -> None:
    """Writes `<name>1.queries.jsonl`, `<name>1.qrels`, ... into an empty folder, in the order of topics and qrels."""
    for number, part in enumerate(map(set, parts), start=1):
        with (folder / f"{name}{number}.queries.jsonl").open("wb") as lines:
            for topic in (topic for topic in topics if topic.query_id in part):
                image = {} if topic.image is None else {"image": str(Path(topic.image).absolute())}
                text = {} if topic.text is None else {"text": topic.text}
                lines.write(orjson.dumps({"_id": topic.query_id, **text, **image}, option=orjson.OPT_APPEND_NEWLINE))
        judged = (f"{q.query_id}\t0\t{q.doc_id}\t{q.relevance}\n" for q in qrels if q.query_id in part)
        (folder / f"{name}{number}.qrels").write_text("".join(judged), encoding="utf-8")


def command(
    named: Annotated[
        str, typer.Option("--topics", help="dataset/split, or a file of topics.", autocompletion=corpus_names)
    ],
    output: Annotated[Path, typer.Option(help="Folder to write: half1.queries.jsonl, half1.qrels, ...")],
    qrels: options.QrelsFile = None,
    folds: Annotated[int | None, typer.Option(min=2, help="So many folds in place of two halves.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw, as tune --split-seed.")] = 1,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    style: Style = "text",
    verbose: Verbose = False,
) -> None:
    """Split judged topics into two halves or several folds, drawn by a seed.

    Example: python -m eval.analyses.split --topics demo/test --folds 5 --output splits/demo
    """
    refuse_existing(output, overwrite)
    ref = CorpusRef(named, data_dir=data_dir)
    source = load_topics(ref)
    if source.judged is None and qrels is None:
        raise UsageError(f"{named}: topics of a file have no judgements; give --qrels")
    judged = read_judgements(JudgementSource(qrels, source.judged or CorpusRef("")))
    topics = [topic for topic in source.stream() if isinstance(topic, Topic)]
    answered = {qrel.query_id for qrel in judged.qrels} & {topic.query_id for topic in topics}
    parts = drawn_parts(answered, judged.label, seed, folds)
    with new_folder(output) as folder:
        write_parts(folder, "fold" if folds else "half", parts, topics, judged.qrels)
    if source.remove_query:
        log.warning("%s: its rule leaves out a document whose id is the topic's; search --remove-query", named)
    rows = {"output": str(output), "topics": len(answered), "without_judgements": len(topics) - len(answered)}
    print_rows({**rows, "parts": ", ".join(str(len(part)) for part in parts), "seed": seed}, style)


if __name__ == "__main__":
    run(command)
