"""Checkpoints that are damaged or hostile: no code of theirs runs, no size they claim is believed, each is one line."""

import gzip
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from base64 import b64encode
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoders import Runs, made_lexlip

from lexvl_anserini.encoders.checkpoints.weights import read_contents, read_weights
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.tokens import measure_growth
from lexvl_anserini.ground.errors import CheckpointError, LexvlError, UnknownName

BERT = "splade/ckpt_bert"


def edit(path, **changes):
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | changes))


def refused(name, folder, **options):
    """The line of the error that loading a checkpoint raises."""
    with pytest.raises(CheckpointError) as caught:
        load_encoder(name, str(folder), device="cpu", **options)
    line = str(caught.value)
    assert "\n" not in line and "weights_only" not in line and "trust_remote_code" not in line
    return line


# ---- code


@pytest.fixture
def planted(bert, tmp_path):
    """A folder with modules of every kind that a loader could import; each would write the file `ran`."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nfrom transformers import *\n"
    classes = ("Tokenizer(BertTokenizerFast)", "Config(BertConfig)", "Model(BertModel)", "MaskedLM(BertForMaskedLM)")
    body = "".join(f"class {name}: pass\n" for name in classes)
    body += "class Module(__import__('torch').nn.Module):\n"
    body += "    @classmethod\n    def load(cls, *_, **__): return cls()\n"
    for name in ("evil.py", "modeling_evil.py", "tokenization_evil.py", "__init__.py"):
        (bert / name).write_text(code + body)
    yield bert
    assert not (tmp_path / "ran").exists(), "code of the checkpoint ran"


AUTO_MAP = {
    "AutoConfig": "evil.Config",
    "AutoModel": "evil.Model",
    "AutoModelForMaskedLM": "evil.MaskedLM",
    "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
}
ENCODERS = ("bag-of-tokens", "splade", "vdr", "bertlex", "sentence")


@pytest.fixture
def loaded(capfd, monkeypatch):
    """`loaded(folder, names)`: what several encoders say of a folder to a user who answers yes to every question."""

    def loaded(folder, names=ENCODERS):
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
        told = {}
        for name in names:
            try:
                assert load_encoder(name, str(folder), device="cpu").query
                told[name] = "loaded"
            except LexvlError as error:
                told[name] = str(error)
        printed = "".join([*capfd.readouterr(), *told.values()])
        assert "[y/N]" not in printed and "trust_remote_code" not in printed
        assert not any("\n" in line for line in told.values())
        return told

    return loaded


def test_code_that_configuration_and_tokenizer_name(planted, loaded):
    """A model type and a tokenizer that only the folder's code knows."""
    edit(planted / "config.json", auto_map=AUTO_MAP, model_type="evil")
    edit(planted / "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="EvilTokenizer")
    write_modules(planted, {**TRANSFORMER, "type": "evil.Module"})
    told = loaded(planted)
    assert "tokenizer cannot be read" in told["bag-of-tokens"] or told["bag-of-tokens"] == "loaded"
    assert "transformers has no model type 'evil'; code of a checkpoint is never run" in told["vdr"]
    assert "loaded" not in {told["splade"], told["sentence"]}
    (planted / "config.json").unlink()  # of the tokenizer's own files alone transformers asked whether to run them
    told = loaded(planted, ["bag-of-tokens"])
    assert told["bag-of-tokens"] == "loaded" or "tokenizer cannot be read" in told["bag-of-tokens"]


def test_code_beside_weights_of_naver(planted, loaded, tmp_path):
    """`from_config` asked for a model type that transformers has, but not as a masked LM."""
    weights = {f"transformer_rep.transformer.{k}": v for k, v in load_file(planted / "model.safetensors").items()}
    (planted / "model.safetensors").unlink()
    torch.save({"model_state_dict": weights}, planted / "model.tar")
    edit(planted / "config.json", auto_map=AUTO_MAP, model_type="clip")
    assert "clip is not a masked LM" in loaded(planted, ["splade"])["splade"]


def test_modules_are_classes_of_models_only(planted):
    library = ("util.import_from_string", "models.Transformer.x.WordEmbedding")
    for name in ("evil.Module", "os.system", *(f"sentence_transformers.{path}" for path in library)):
        write_modules(planted, {**TRANSFORMER, "type": name})
        assert "code of a checkpoint is never run" in refused("sentence", planted)


def module(kind, number=0, path=""):
    """A module of sentence-transformers as `modules.json` lists it."""
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}


def write_modules(folder, *modules):
    (folder / "modules.json").write_text(json.dumps(modules))


TRANSFORMER, POOLING = module("Transformer"), module("Pooling", 1, "1_Pooling")


@pytest.mark.parametrize(
    "kind,file,content,expected",
    [
        ("Router", "router_config.json", {"types": {"a": "evil.Module"}, "structure": {}}, "never run"),
        ("Router", "config.json", {"types": {"../a": "sentence_transformers.models.Dense"}}, "expected a name inside"),
        ("Dense", "config.json", {"activation_function": "evil.Module"}, "not a class that Dense uses"),
        ("Dense", "config.json", {"activation_function": "torch.hub.load"}, "not a class that Dense uses"),
        ("WordEmbeddings", "config.json", {"tokenizer_class": "evil.Tokenizer"}, "not a class that WordEmbeddings"),
    ],
)
def test_classes_inside_of_modules(planted, kind, file, content, expected):
    write_modules(planted, TRANSFORMER, module(kind, 1, "1_X"))
    (planted / "1_X").mkdir()
    (planted / "1_X" / file).write_text(json.dumps(content))
    assert expected in refused("sentence", planted)


@pytest.mark.parametrize(
    "key,value",
    [
        ("model_args", {"use_kernels": True}),
        ("model_kwargs", {"attn_implementation": "owner/kernel"}),
        ("tokenizer_args", {"tokenizer_file": "/x"}),
        ("config_kwargs", ["x"]),
    ],
)
def test_arguments_that_a_folder_may_not_choose(planted, key, value):
    write_modules(planted, TRANSFORMER)
    edit(planted / "sentence_bert_config.json", **{key: value})
    assert "which a checkpoint may not choose" in refused("sentence", planted)


def test_code_in_other_places_of_a_folder_is_data(planted, load):
    """Templates of chats, pipelines, a kernel of the hub: the vectors are those of the folder without them."""
    command = "{{ cycler.__init__.__globals__.os.system('touch ran') }}"
    edit(planted / "tokenizer_config.json", chat_template=command)
    (planted / "chat_template.jinja").write_text(command)
    edit(
        planted / "config.json",
        custom_pipelines={"x": {"impl": "evil.Model", "pt": ["AutoModel"]}},
        attn_implementation="owner/kernel",
        _attn_implementation="owner/kernel",
        _name_or_path="owner/other",
        auto_map=AUTO_MAP,
    )
    found = load_encoder("splade", str(planted), device="cpu").document.weights(["a dog"])
    assert (found != load("splade", BERT).document.weights(["a dog"])).nnz == 0


def test_an_adapter_is_not_followed(planted):
    """transformers would load the model that the adapter names instead of the folder's own."""
    edit(planted / "adapter_config.json", base_model_name_or_path="owner/other", peft_type="LORA")
    assert "has an adapter" in refused("splade", planted)


@pytest.mark.parametrize("name", ["os:system", "lexvl_anserini.cli:main", "../splade", ""])
def test_names_in_data_are_rows_of_tables(name):
    """A manifest names its encoder and an index its engine; neither is imported by that name."""
    from lexvl_anserini.encoders.loading import load_encoder_from
    from lexvl_anserini.engines.engine import get_engine
    from lexvl_anserini.ground.manifest import EncoderRef

    with pytest.raises(UnknownName, match="unknown encoder"):
        load_encoder_from(EncoderRef(name=name))
    with pytest.raises(UnknownName, match="unknown engine"):
        get_engine(name)


# ---- sizes


# Loads what it is given; prints the MB by which memory grew beyond all before, the calls of functions, and the answer.
COSTS = """
import sys
from pathlib import Path
from lexvl_anserini.encoders.checkpoints.weights import read_weights
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import CheckpointError

def peak():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM:"))

def count(frame, event, argument):
    global calls
    calls += event == "call"

for number, path in enumerate(sys.argv[2:]):
    before, calls, answer = peak(), 0, "loaded"
    sys.setprofile(count if number else None)  # the first imports libraries
    try:
        read_weights(Path(path)) if sys.argv[1] == "weights" else load_encoder(sys.argv[1], path, device="cpu")
    except CheckpointError as error:
        answer = error
    sys.setprofile(None)
    print(peak() - before, calls, answer)
"""


def answers_at_no_cost(name, sound, *paths):
    """The answers to paths, none of which costs more than a sound one by 100 MB, or by ten times the calls."""
    if not Path("/proc/self/status").is_file():
        pytest.skip("the system does not say how much memory a process had")
    command = [sys.executable, "-c", COSTS, name, *map(str, (sound, sound, *paths))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    _, (_, usual, loaded), *others = (line.split(" ", 2) for line in done.stdout.splitlines())
    assert loaded == "loaded"
    for grown, calls, answer in others:
        assert int(grown) < 100 and int(calls) < 10 * int(usual), (grown, calls, usual, answer)
    return [answer for _, _, answer in others]


@pytest.fixture(scope="module")
def bomb(tmp_path_factory):
    """389 KB that unpack to 400 MB of zeros."""
    path = tmp_path_factory.mktemp("bomb") / "x.pt"
    whole = path.with_name("whole.pt")
    torch.save({"a": torch.zeros(100_000_000)}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for name in source.namelist():
            out.writestr(name, source.read(name))
    whole.unlink()
    return path


def expanded(path):
    """A few numbers that claim to be 40 GB, by strides of 0."""
    torch.save({"a": torch.zeros(1).expand(100_000, 100_000)}, path)
    return path


def shared_lists(path):
    """Plain values whose lists are each twice in the next: 2^100 paths to one number."""
    value = [1]
    for _ in range(100):
        value = [value, value]
    torch.save({"a": torch.ones(1), "options": value}, path)
    return path


def test_weights_that_claim_more_than_they_have(bomb, tmp_path):
    meta = tmp_path / "meta.pt"
    torch.save({"a": torch.zeros(10, device="meta"), "b": torch.ones(1).to_sparse()}, meta)
    torch.save({"a": torch.ones(1)}, sound := tmp_path / "sound.pt")
    paths = (bomb, expanded(tmp_path / "e.pt"), shared_lists(tmp_path / "s.pt"), meta)
    first, second, third, fourth = answers_at_no_cost("weights", sound, *paths)
    assert "refused, its 38" in first and "unpack to 400" in first
    assert "a [100000, 100000] repeats numbers or is not dense" in second and third == "loaded"
    assert "repeats numbers or is not dense" in fourth or "cannot be read" in fourth


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10_000_000},
        {"num_hidden_layers": 300},
        {"hidden_size": 1 << 40, "num_attention_heads": 1},
        {"vocab_size": 10**12},
        {"max_position_embeddings": 10**9},
        {"intermediate_size": 10**9},
        {"num_labels": 10**9},
        {"type_vocab_size": 10**11},
    ],
    ids=lambda changes: " ".join(map(str, changes)),
)
def test_a_configuration_that_claims_more_than_the_weights(bert, changes):
    edit(bert / "config.json", **changes)
    for name in ("splade", "vdr"):
        line = refused(name, bert)
        assert "config.json: " in line
        assert "far larger model" in line or "expected at most" in line or "no model that can be built" in line


def test_claims_cost_neither_memory_nor_time(golden, tmp_path):
    folders = []
    for number, changes in enumerate(({"max_position_embeddings": 10**9}, {"num_hidden_layers": 1000})):
        folder = Path(shutil.copytree(golden / BERT, tmp_path / f"{number}"))
        edit(folder / "config.json", **changes)
        folders.append(folder)
    first, second = answers_at_no_cost("splade", golden / BERT, *folders)
    assert "far larger model" in first and "far larger model" in second


# ---- wrong types


@pytest.mark.parametrize("wrong", ["null", "3", '"x"', "[]", "[[1]]", '{"a": {}}', "{", "[" * 500, "\ufffd"])
@pytest.mark.parametrize(
    "name,file",
    [
        ("splade", "config.json"),
        ("bag-of-tokens", "tokenizer.json"),
        ("bag-of-tokens", "tokenizer_config.json"),
        ("splade", "modules.json"),
        ("sentence", "modules.json"),
        ("sentence", "1_Pooling/config.json"),
        ("sentence", "config_sentence_transformers.json"),
        ("vdr", "config.json"),
    ],
)
def test_files_of_another_type(bert, name, file, wrong):
    (bert / "1_Pooling").mkdir()
    edit(bert / "1_Pooling/config.json", word_embedding_dimension=32, pooling_mode_mean_tokens=True)
    if name == "sentence":
        write_modules(bert, TRANSFORMER, POOLING)
    (bert / file).write_text(wrong)
    try:
        load_encoder(name, str(bert), device="cpu")
    except LexvlError as error:
        assert "\n" not in str(error) and str(bert) in str(error)


def test_a_shard_that_leads_out_of_the_folder(bert, tmp_path):
    shutil.move(bert / "model.safetensors", tmp_path / "x.safetensors")
    save_file({"a": torch.ones(1)}, bert / "y.safetensors")
    for name in ("../x.safetensors", str(tmp_path / "x.safetensors"), "a/../../x.safetensors"):
        edit(bert / "model.safetensors.index.json", weight_map={"a": name})
        with pytest.raises(CheckpointError, match="expected a name inside"):
            read_weights(bert)
    edit(bert / "model.safetensors.index.json", weight_map=[1])
    with pytest.raises(CheckpointError, match="weight_map is not a mapping"):
        read_weights(bert)


def test_values_that_hold_themselves(tmp_path):
    value: list = [1]
    value.append(value)
    torch.save({"a": torch.ones(1), "options": value}, tmp_path / "x.pt")
    assert read_contents(tmp_path / "x.pt").extra.keys() == {"options"}


def test_merges_that_unpack_without_end(tmp_path):
    """CLIP's merges are gzipped text; 195 KB unpack to 200 MB."""
    from lexvl_anserini.encoders.parts.clip_bpe import read_merges

    path = tmp_path / "bpe_simple_vocab_16e6.txt.gz"
    path.write_bytes(gzip.compress(bytes(200_000_000), 9))
    with pytest.raises(CheckpointError, match="more than 67108864 characters, expected BPE merges"):
        read_merges(path)
    path.write_bytes(gzip.compress(b"header\na b\n")[:-5])
    with pytest.raises(CheckpointError, match="cannot be read as BPE merges"):
        read_merges(path)


@pytest.mark.parametrize("name", ["vdr", "splade", "sentence"])
def test_a_configuration_that_has_no_end(bert, name):
    """A pipe, a device: reading them would wait, or fill the memory."""
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir, lambda path: path.symlink_to(path)):
        (bert / "config.json").unlink()
        make(bert / "config.json")
        assert "config.json" in refused(name, bert)
        if (bert / "config.json").is_dir():
            (bert / "config.json").rmdir()
            (bert / "config.json").touch()


@pytest.mark.parametrize("file", ["config_sentence_transformers.json", "vocab.txt", "README.md", "modules.json"])
def test_a_pipe_in_a_folder_of_sentence_transformers(bert, file):
    write_modules(bert, TRANSFORMER)
    (bert / file).unlink(missing_ok=True)
    os.mkfifo(bert / file)
    assert file in refused("sentence", bert)


@pytest.mark.parametrize("name", ["terms.txt", "text/listed", "tokenizer.json"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_a_checkpoint_names_or_has_may_have_no_end(golden, tmp_path, name, make):
    """A file of a model's own names, and one that only config.json names."""
    folder = Path(shutil.copytree(made_lexlip(golden, tmp_path), tmp_path / "hostile"))
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("terms.txt", name) if name == "text/listed" else config)
    assert f"{name}: neither a file nor a folder" in refused("lexlip", folder)


def test_a_width_that_only_a_file_says(bert):
    """numpy's error about -727379968 columns came with the first texts."""
    write_modules(bert, TRANSFORMER, POOLING)
    (bert / "1_Pooling").mkdir()
    for width in (32, 33, 10**12, -5):
        about = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
        (bert / "1_Pooling/config.json").write_text(json.dumps(about))
        if width == 32:
            assert load_encoder("sentence", str(bert), device="cpu").encode_document(["a dog"]).shape == (1, 32)
        else:
            assert f"its modules say {width} dimensions, and give" in refused("sentence", bert)


def test_a_type_in_a_parquet_file_is_not_unpickled(tmp_path):
    """Older pyarrow unpickled the metadata of this extension type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lexvl_anserini.data.corpora.embeddings import read_embeddings

    about = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(Runs(os.mkdir, str(tmp_path / "ran"))),
    }
    schema = pa.schema([pa.field("id", pa.string()), pa.field("emb", pa.list_(pa.float32()), metadata=about)])
    pq.write_table(pa.table({"id": ["1"], "emb": [[1.0, 2.0]]}, schema=schema), tmp_path / "img_embs.parquet")
    try:
        read_embeddings([f"{tmp_path / 'img_embs.parquet'}::1"])
    except LexvlError as error:
        assert "\n" not in str(error)
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_that_fails_at_some_texts_only(bert):
    """Its unknown token is missing; a token has an id above all dimensions."""
    about = json.loads((bert / "tokenizer.json").read_text())
    words = dict(about["model"]["vocab"])
    without = {word: number for word, number in words.items() if word != "[UNK]"}
    for change in ({"vocab": without}, {"vocab": {**words, "dog": 5000}}):
        edit(bert / "tokenizer.json", model={**about["model"], **change})
        line = refused("bag-of-tokens", bert)
        assert "the tokenizer cannot be read (Exception: WordPiece error" in line or "has the id" in line


def test_a_tokenizer_that_makes_texts_longer_without_end(bert):
    """Twenty times and twenty times; an expression that matches between characters; a table with a long text."""
    longer = {"type": "Replace", "pattern": {"String": "aa"}, "content": "a" * 40}
    between = {"type": "Replace", "pattern": {"Regex": "b*"}, "content": "-" * 200}
    table = {"type": "Precompiled", "precompiled_charsmap": b64encode(b"\4\0\0\0TREEx\0" + 300 * b"y").decode()}
    sequence = {"type": "Sequence", "normalizers": [longer, longer]}
    for normalizer, times in ((longer, 20), (sequence, 400), (between, 201), (table, 300), ({"type": "NFKC"}, 1)):
        assert measure_growth(normalizer) == times
    edit(bert / "tokenizer.json", normalizer=sequence)
    assert "its normalizer makes a text 400 times as long, expected at most 128" in refused("bag-of-tokens", bert)
