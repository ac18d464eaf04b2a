"""The encode command: what it prints, writes, refuses, and how it ends."""

import gzip
import json
import logging
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from byte_towers import tree
from corpus_folders import write_beir
from PIL import Image

from lexvl_anserini import cli
from lexvl_anserini.data.dataset import load_dataset, load_reference
from lexvl_anserini.encode import command
from lexvl_anserini.encoders.cards import CARDS, choose_encoder, make_length_options
from lexvl_anserini.encoders.loading import load_encoder, load_encoder_from
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.ground.files import write_json
from lexvl_anserini.ground.manifest import name_manifest, read_manifest
from lexvl_anserini.ground.records import Topic
from lexvl_anserini.queries.query_vectors import encode_queries, find_finished_queries
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts
from tests.invoking import invoked, run_process

MODULE = [sys.executable, "-m", "lexvl_anserini.encode"]


WORDS = ["a", "dog", "man", "horse", "beach", "ocean", "pizza", "table", "people", "two", "on", "the", "near"]


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    draw = random.Random(7)
    documents = {f"d{number}": " ".join(draw.choices(WORDS, k=draw.randrange(12))) for number in range(40)}
    topics = {"q0": "a dog", "q1": "two people near the ocean", "q2": "pizza"}
    return write_beir(tmp_path_factory.mktemp("beir") / "b", documents, topics, [(query, "d1") for query in topics])


@pytest.fixture
def encode(monkeypatch, capsys, beir, golden, tmp_path):
    """Runs the command on that corpus with a tiny model, in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    checkpoint = str(golden / "splade/ckpt_bert")
    defaults = {"--corpus": f"beir:{beir}", "--encoder": "splade", "--checkpoint": checkpoint, "--device": "cpu"}

    def run(*arguments, **changed):
        given = {**defaults, **{f"--{key.replace('_', '-')}": value for key, value in changed.items()}}
        words = [word for key, value in given.items() if value is not None for word in (key, str(value))]
        monkeypatch.setattr(sys, "argv", ["encode", *words, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.run(command)
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    yield run
    for name in ("lexvl_anserini", "lexvl_eval"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def one_line(err):
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith(("error: ", "Error: "))]
    return line


def test_encodes_a_corpus(encode, beir):
    code, out, _ = encode("--format", "json", output="out")
    assert code == 0
    rows = json.loads(out)
    manifest = read_manifest(Path("out"))
    assert rows["documents"] == 40 == manifest.counts["documents"]
    assert rows["output"] == "out" and rows["encoder"] == "splade" and rows["shards"] == 1
    assert rows["postings"] == manifest.counts["postings"] and rows["clipped_share"] == 0
    assert rows["bytes"] == Path("out/docs/shard-00000.jsonl").stat().st_size
    assert rows["scale"] == manifest.quantiser["document"]["scale"]
    lines = [json.loads(line) for line in Path("out/docs/shard-00000.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"d{number}" for number in range(40)]


def test_texts_in_passages(encode, beir):
    """The manifest notes the rule, with which the corpus of an index is read again."""
    assert encode("--passages", "5:3", encoder="bag-of-tokens", output="out")[0] == 0
    manifest = read_manifest(Path("out"))
    ids = [json.loads(line)["id"] for line in Path("out/docs/shard-00000.jsonl").read_text().splitlines()]
    texts = {document.doc_id: document.text.split() for document in load_dataset(f"beir:{beir}").documents()}
    assert ids == [f"{name}#{n}" for name, words in texts.items() for n in range(max(1, -(-(len(words) - 5) // 3) + 1))]
    assert manifest.corpus.passages == "5:3" and manifest.documents == len(ids)
    assert [document.doc_id for document in load_reference(manifest.corpus.ref).documents()] == ids
    code, _, err = encode("--passages", "5", encoder="bag-of-tokens", output="out")
    assert code == 1 and "another request (corpus.passages: " in one_line(err)


@pytest.mark.parametrize(
    "encoder,direction,lengths,expected",
    [
        ("splade", "text-to-text", (9, 5), {"max_length": 9, "query_max_length": 5}),
        ("vdr-crossmodal", "text-to-image", (None, 16), {"text_max_length": 16}),
        ("vdr-crossmodal", "text-to-image", (16, None), {"text_max_length": 16}),
        ("clip", "text-to-image", (None, 16), {"text_max_length": 16}),
        ("blip", "text-to-image", (None, 16), {"max_length": 16}),
        ("bag-of-tokens", "text-to-text", (16, None), {"max_length": 16}),
        ("vdr-crossmodal", "text-to-image", (None, None), {}),
        ("d2s", "text-to-image", (None, 16), {"query_max_length": 16}),  # the loader tells that it has no such option
        # A length of queries never cuts documents.
        ("vdr-crossmodal", "image-to-text", (None, 16), None),  # the queries are pictures
        ("clip", "text-to-text", (None, 16), None),
        ("vdr-crossmodal", "text-to-image", (8, 16), None),
    ],
)
def test_lengths_go_by_the_name_that_the_encoder_has_for_them(encoder, direction, lengths, expected):
    if expected is not None:
        assert make_length_options(encoder, direction, *lengths) == expected
        return
    with pytest.raises(UsageError, match="reads all texts to one length; give it by --max-length alone"):
        make_length_options(encoder, direction, *lengths)


def test_options_reach_the_encoder_the_quantiser_and_the_layout(encode):
    arguments = ["--set", "topk=5", "--set", "query-topk=3", "--max-length", "9", "--shard-size", "16", "--compress"]
    settings = {"quantiser": "fixed", "scale": 10, "bits": 4, "query_bits": 3}
    assert encode(*arguments, "--store-contents", "--store-metadata", **settings, output="out")[0] == 0
    manifest = read_manifest(Path("out"))
    assert manifest.encoder["options"] == {"topk": 5, "query_topk": 3, "max_length": 9}
    assert manifest.counts["postings"] <= 40 * 5
    assert manifest.quantiser["document"] == {"scheme": "fixed", "bits": 4, "scale": 10.0, "percentile": 100.0}
    assert manifest.quantiser["query"]["bits"] == 3 and manifest.counts["max_impact"] <= 15
    assert [shard["documents"] for shard in manifest.shards] == [16, 16, 8]
    (first, *_) = gzip.decompress(Path("out/docs/shard-00000.jsonl.gz").read_bytes()).splitlines()
    assert set(json.loads(first)) == {"id", "contents", "metadata", "vector"} and json.loads(first)["metadata"] == {}


def test_dry_run_writes_nothing(encode, tmp_path):
    code, out, _ = encode("--dry-run", "--format", "json", output="out")
    rows = json.loads(out)
    assert code == 0 and rows["documents"] == 40 and rows["estimated_seconds"] >= 0 and rows["output"] == "out"
    code, out, _ = encode("--dry-run", "--format", "json", output="q.jsonl", topics=_topics(tmp_path))
    assert code == 0 and json.loads(out)["topics"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["topics.tsv"]


def test_list_encoders(encode):
    code, out, _ = encode("--list-encoders")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == list(CARDS)
    (splade,) = [line for line in out.splitlines() if line.startswith("splade ")]
    assert "naver/splade-v3" in splade and "CC BY-NC-SA 4.0" in splade and "arXiv 2107.05720" in splade
    rows = json.loads(encode("--list-encoders", "--format", "json")[1])
    assert [row["name"] for row in rows] == list(CARDS)
    assert all(set(row) == {"name", "paper", "modalities", "checkpoints", "licence"} for row in rows)


@pytest.mark.parametrize("name", CARDS)
def test_describe(encode, name):
    code, out, _ = encode("--describe", name)
    about = json.loads(encode("--describe", name, "--format", "json")[1])
    assert code == 0 and out.startswith(f"{name}: {about['equation']}") and about["name"] == name
    assert about["example"] == out.splitlines()[-1].removeprefix("Example: ")
    for option in about["options"]:
        assert f"  {option['name']}={option['default']}  ({option['type']})" in out
    words = shlex.split(about["example"])
    assert words[:2] == ["python", "-m"] and words[words.index("--encoder") + 1] == name


def test_parts_of_a_corpus(encode, beir):
    assert encode(output="whole")[0] == 0
    for number in range(3):
        assert encode(shard_id=number, shard_num=3)[0] == 0
    folders = [Path("impacts") / f"beir-{beir.name}.splade.part-{number}-of-3" for number in range(3)]
    found = b"".join((folder / "docs/shard-00000.jsonl").read_bytes() for folder in folders)
    assert found == Path("whole/docs/shard-00000.jsonl").read_bytes()
    assert len({json.dumps(read_manifest(folder).quantiser) for folder in (*folders, Path("whole"))}) == 1
    code, out, _ = encode("--dry-run", "--format", "json", shard_id=0, shard_num=3)
    assert code == 0 and json.loads(out)["documents"] == 13


@pytest.mark.parametrize(
    ("corpus", "direction", "encoder", "expected"),
    [
        ("demo", "text-to-image", None, ("vdr-crossmodal", "demo-vdr")),
        ("demo/val", "image-to-text", "dense-crossmodal", ("dense-crossmodal", "demo-dense")),
        ("demo", "text-to-text", None, ("vdr", "minilm")),
        ("flickr8k", "text-to-image", None, ("vdr-crossmodal", "photos-vdr")),
        ("flickr8k", "text-to-text", None, ("vdr", "lexvl-mini")),
        ("flickr8k", "text-to-image", "clip", ("clip", None)),
        ("coco", "text-to-image", None, ("vdr-crossmodal", None)),
        ("folder:photos", "text-to-image", None, ("vdr-crossmodal", "photos-vdr")),
        ("beir/scifact", "text-to-text", None, ("vdr", "lexvl-mini")),
        ("beir/scifact", "text-to-text", "vdr", ("vdr", None)),
    ],
)
def test_encoders_when_none_is_named(corpus, direction, encoder, expected):
    assert choose_encoder(corpus, direction, encoder) == expected


def test_pictures_that_cannot_be_read(encode, tmp_path, caplog):
    """The error names the option that leaves them out; the demo's pair also says that it knows drawings only."""
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "pictures/a.png")
    (tmp_path / "pictures/broken.png").write_bytes((tmp_path / "pictures/a.png").read_bytes()[:60])
    model = {"encoder": "vdr-crossmodal", "checkpoint": "demo-vdr"}
    wanted = {**model, "corpus": "pictures:pictures", "output": "out"}
    code, _, err = encode(**wanted)
    assert code == 1 and "broken.png: " in one_line(err)
    assert "; --on-error skip leaves such pictures out and lists them" in err.splitlines()[-1]
    code, out, err = encode("--format", "json", on_error="skip", **wanted)
    rows = json.loads(out)
    assert code == 0 and rows["documents"] == 1 and rows["skipped"] == 1
    (row,) = [json.loads(line) for line in Path("out/skipped.jsonl").read_text().splitlines()]
    assert row["id"] == "broken.png" and "broken.png" in row["reason"]
    assert read_manifest(Path("out")).counts["documents"] == 1
    assert "demo-vdr was trained on the drawn images of the demo and finds little among photos" in caplog.text


def _topics(folder):
    (folder / "topics.tsv").write_text("1\ta dog\n2\ttwo people\n")
    return folder / "topics.tsv"


def test_encodes_topics_of_a_file_and_of_a_corpus(encode, beir, tmp_path, load):
    code, out, _ = encode("--format", "json", topics=_topics(tmp_path), output="q.jsonl.gz")
    assert code == 0 and json.loads(out)["topics"] == 2
    found = [json.loads(line) for line in gzip.decompress(Path("q.jsonl.gz").read_bytes()).splitlines()]
    # Stock Pyserini finds the vector of a text by the text.
    assert [(line["id"], line["contents"]) for line in found] == [("1", "a dog"), ("2", "two people")]
    model = load("splade", "splade/ckpt_bert")
    (terms,) = model.decode(model.encode_query(["a dog"]))
    assert max(found[0]["vector"].values()) == 255 == found[0]["vector"][terms[0][0]]
    assert encode(topics=f"beir:{beir}", output="q.jsonl")[0] == 0
    assert len(Path("q.jsonl").read_text().splitlines()) == 3
    # A run of them can be measured: the queries know where they are judged.
    origin = json.loads(Path("q.jsonl.manifest.json").read_text())["topics"]
    assert origin["dataset"] == f"beir:{beir}" and origin["split"] == "test" and not origin["remove_query"]


def test_topics_for_an_index_that_has_greater_impacts_now(tmp_path):
    """They may need fewer bits; a file of an older version does not say for which impacts it was made."""
    output, made = tmp_path / "q.jsonl", {"encoder": {"name": "x"}, "topics": {}, "topics_sha256": "0"}
    output.write_text("")
    write_json(name_manifest(output), {**made, "contents": True, "max_impact": 9, "counts": {"topics": 2}})
    assert find_finished_queries(output, {**made, "contents": True, "max_impact": 9}, False) == 2
    with pytest.raises(ArtefactError, match="max_impact: 9 found, 10 requested"):
        find_finished_queries(output, {**made, "contents": True, "max_impact": 10}, False)
    write_json(name_manifest(output), {**made, "contents": True, "counts": {"topics": 2}})
    assert find_finished_queries(output, {**made, "contents": True, "max_impact": 10}, False) == 2


@pytest.mark.parametrize(
    "changed,code,told",
    [
        ({"encoder": "spalde"}, 2, "unknown encoder 'spalde'; did you mean 'splade'?"),
        ({"corpus": "beir:/nowhere"}, 1, "/nowhere"),
        ({"checkpoint": None}, 2, "needs a checkpoint"),
        ({"checkpoint": "/nowhere"}, 1, "no such folder"),
        ({"device": "tpu9000"}, 2, "device 'tpu9000' cannot be used here"),
        ({"quantiser": "linear"}, 2, "'linear' is not one of"),
        ({"quantiser": "fixed"}, 2, "needs a scale"),
        ({"bits": 40}, 2, "40 bits: expected 1 to 16"),
        ({"shard_format": "csv"}, 2, "'csv' is not one of"),
        ({"format": "yaml"}, 2, "'yaml' is not one of"),
        ({"set": "topk"}, 2, "expected KEY=VALUE"),
        ({"set": "top_k=3"}, 2, "did you mean 'topk'"),
        ({"set": "topk=many"}, 2, 'option topk="many", expected an integer'),
        ({"max_length": 4096}, 2, "max_length 4096: this model reads at least 3 and at most 128 tokens"),
        ({"on_error": "ignore"}, 2, "'ignore' is not one of"),
        ({"shard_id": 1}, 2, "--shard-id and --shard-num go together"),
        ({"shard_id": 3, "shard_num": 3}, 2, "shard id 3 of 3: expected 0 to 2"),
        ({"shard_id": 3, "shard_num": 41}, 2, "41 parts of a corpus of 40 documents"),
        ({"shard_id": 0, "shard_num": 2, "topics": "x"}, 2, "--shard-id divides a corpus"),
        ({"output": "/dev/null/here"}, 1, "/dev/null/here: cannot be written"),
        ({"passages": "3:5"}, 2, "expected WORDS or WORDS:STRIDE"),
        ({"passages": "5", "topics": "topics.tsv"}, 2, "--passages splits the texts of a corpus"),
        ({"topics": "topics.tsv", "output": None}, 2, "--topics needs --output"),
        ({"topics": "topics.tsv", "encoder": "bm25", "checkpoint": None}, 2, "only lexical queries"),
    ],
)
def test_errors_are_one_line(encode, tmp_path, changed, code, told):
    _topics(tmp_path)
    found, out, err = encode(**{"output": "out", **changed})
    assert found == code and told in one_line(err) and out == ""
    assert not Path("out").exists()


def test_queries_by_the_encoder_of_a_manifest(encode, golden):
    query_encoder = f"query_checkpoint={golden / 'splade/ckpt_query_bert'}"
    assert encode("--set", query_encoder, output="out")[0] == 0
    manifest = read_manifest(Path("out"))
    model = load_encoder_from(manifest.encoder, device="cpu", vocabulary=manifest.vocabulary_digest)
    assert model.options == manifest.encoder["options"]
    topics = [Topic("1", "a dog"), Topic("2", "")]
    first, second = encode_queries(model, topics, manifest)
    assert (first.query_id, second.query_id) == ("1", "2")
    assert max(first.vector.values()) <= 255 and min(first.vector.values()) >= 1
    assert sum(first.vector.values()) * manifest.counts["max_impact"] < 1 << 24
    with pytest.raises(UsageError, match="topic '3' has no text"):
        list(encode_queries(model, [Topic("3", image="a.png")], manifest))


def test_verbose_shows_the_traceback(tmp_path):
    quiet, loud = (run_process([*MODULE, "--encoder", "spalde", *more], cwd=tmp_path) for more in ([], ["--verbose"]))
    assert (quiet.returncode, quiet.stdout, loud.returncode) == (2, "", 2) and "Traceback" in loud.stderr
    assert quiet.stderr.startswith("error: unknown encoder") and quiet.stderr.count("\n") == 1


def test_ctrl_c_stops_and_the_same_command_goes_on(beir, golden, tmp_path, monkeypatch, caplog):
    arguments = ["--corpus", f"beir:{beir}", "--encoder", "vdr", "--checkpoint", golden / "vdr/text-tiny"]
    arguments += ["--shard-size", "1", "--batch-size", "1", "--device", "cpu", "--output", "out"]
    model = load_encoder("vdr", str(golden / "vdr/text-tiny"), device="cpu")
    write_impacts(load_dataset(f"beir:{beir}"), model, tmp_path / "fresh", layout=Layout(shard_size=1), batch_size=1)
    running = subprocess.Popen([*MODULE, *map(str, arguments)], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while running.poll() is None and not list((tmp_path / "out/docs").glob("*")):
        time.sleep(0.002)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=900)
    # 0 where it was faster than the signal.
    assert running.returncode in (0, 130) and "Traceback" not in err
    assert (tmp_path / "out/manifest.json").exists() == (running.returncode == 0)
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    invoked(command, *arguments)
    assert "resuming after" in caplog.text or "finished already" in caplog.text
    assert tree(tmp_path / "fresh") == tree(tmp_path / "out")
