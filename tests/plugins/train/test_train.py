"""Training end to end on twelve coloured squares: resume, save, load, errors; a full disk, and kills at calls."""

import errno
import json
import os
import resource
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from faults import Ended, faults, mounted, resize

from lexvl_anserini.data.lines import FUNCTION_WORDS, load_function_words, read_words
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts.tokens import make_ascii_columns
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_plugins.train.command import describe_plan
from lexvl_plugins.train.common.learner import compute_objective
from lexvl_plugins.train.common.tower_pair import ImageBatch, Temperatures, TextStore, add_types
from lexvl_plugins.train.images.captioned import (
    Batches,
    Cache,
    CaptionTerms,
    PixelStore,
    augment,
    read_captioned,
    read_pixels,
)
from lexvl_plugins.train.images.material import compute_backward_rates, compute_hit_rates
from lexvl_plugins.train.images.sides import SIDES
from lexvl_plugins.train.loop import train
from lexvl_plugins.train.model_settings import ModelSettings
from lexvl_plugins.train.objectives.contrastive import Encoded
from lexvl_plugins.train.recipe import Augmentation, Recipe, check_recipe, parse_changes, read_recipe
from lexvl_plugins.train.words import FIRST_TOKEN_ID, FIRST_WORD_ID, LEFT_OUT, learn_words, save_tokenizer
from tests.plugins.train.tiny_training import COLOURS, same_weights, tiny_recipe, weights_of, write_squares

RECIPES = Path(__file__).parents[3] / "runs" / "recipes"
FLOPS = {"name": "flops", "side": "query", "weight": 1}
ASSETS = Path(__file__).parents[3] / "lexvl_anserini" / "assets"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Karpathy corpus of coloured images: 12 for training, 4 for validation, two captions each."""
    return write_squares(tmp_path_factory.mktemp("corpus"), train=12, word="square")


def recipe_of(corpus: str, **changes: Any) -> Recipe:
    """A recipe small enough for a test; `changes` replace top-level entries."""
    tower = {"width": 16, "layers": 1, "heads": 2}
    stem = {"widths": [8, 16], "blocks": [0, 1]}
    image = {**tower, "resolution": 16, "patch_size": 4, "stem": stem}
    text = {**tower, "max_length": 12, "dropout": 0.1}
    model = {"kind": "vdr-crossmodal", "topk": 8, "text": text, "image": image}
    content = {
        "objective": {"name": "vdr", "learn_temperature": True, "options": {"topk": 8, "normalised": True}},
        "augmentation": {"shift": 1},
        "optimisation": {"steps": 6, "batch_size": 4, "captions_per_image": 2, "warmup_steps": 2},
        "validate_every": 3,
        "state_every": 2,
    }
    return tiny_recipe(corpus, model, **{**content, **changes})


@pytest.fixture(scope="module")
def trained(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    return train(recipe_of(corpus), tmp_path_factory.mktemp("trained"), device="cpu")


def test_a_finished_run_is_left_as_it_is(corpus: str, trained: Path) -> None:
    before = (trained / "model.safetensors").stat().st_mtime_ns
    assert train(recipe_of(corpus), trained.parent, device="cpu") == trained
    assert (trained / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ArtefactError, match="seed: 12345 found, 7 requested"):
        train(recipe_of(corpus, seed=7), trained.parent, device="cpu")


def test_files_beside_the_weights(trained: Path, corpus: str) -> None:
    about = json.loads((trained / "training.json").read_text())
    assert about["recipe"] == recipe_of(corpus).model_dump(mode="json")
    assert about["images"] == 12 and set(about["validation"]) >= {"t2i_R@1", "i2t_R@10", "alpha_t2i_R@5"}
    assert not list(trained.parent.glob("stored-*"))
    assert about["data"] == json.loads((trained.parent / "data.json").read_text())
    assert (trained / "log.jsonl").read_bytes() == (trained.parent / "log.jsonl").read_bytes()


def test_the_checkpoint_is_the_trained_pair(trained: Path, corpus: str, tmp_path: Path) -> None:
    """Validation inside the loop and the loaded encoder agree on every hit rate."""
    from lexvl_anserini.data.dataset import load_dataset

    model = load_encoder("vdr-crossmodal", str(trained), device="cpu")
    held_out = read_captioned(load_dataset(corpus, "val", None, direction="text-to-image"))
    images = model.document.weights(held_out.images)
    texts = model.query.weights(held_out.texts)
    assert images.shape == (4, len(model.document.vocabulary)) and (np.diff(images.indptr) == 8).all()
    scores = torch.from_numpy((texts @ images.T).toarray())
    owner = torch.arange(4).repeat_interleave(2)
    found = {f"t2i_R@{k}": value for k, value in compute_hit_rates(scores, owner).items()}
    measured = json.loads((trained / "training.json").read_text())["validation"]
    assert found == {key: measured[key] for key in found}
    assert "[CLS]" not in model.document.vocabulary.terms and "square" in model.document.vocabulary.terms


def test_the_dense_twin_trains_and_loads(corpus: str, tmp_path: Path) -> None:
    lexical = recipe_of(corpus)
    dense = recipe_of(
        corpus,
        model={**lexical.model.model_dump(mode="json"), "kind": "dense-crossmodal", "dimensions": 12},
        objective={"name": "info_nce", "learn_temperature": True},
        weights="float16",
    )
    folder = train(dense, tmp_path, device="cpu")
    model = load_encoder("dense-crossmodal", str(folder), device="cpu", direction="image-to-text")
    vectors = model.document.vectors(["a red square", ""])
    assert vectors.shape == (2, 12)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert all(w.dtype in (torch.float16, torch.int64) for w in weights_of(folder).values())


def test_regularisers_and_auxiliaries_take_part(corpus: str, trained: Path, tmp_path: Path) -> None:
    naming = {"name": "naming", "weight": 2.0, "options": {"temperature": 0.1}}
    flops = {"name": "flops", "side": "document", "weight": 1000.0}
    for name, changes in (("flops", {"regularisers": [flops]}), ("naming", {"auxiliaries": [naming]})):
        folder = train(recipe_of(corpus, **changes), tmp_path / name, device="cpu")
        assert not torch.equal(weights_of(folder)["encoder_p.proj"], weights_of(trained)["encoder_p.proj"])


def test_the_objective_keeps_as_many_dimensions_as_the_model() -> None:
    query = torch.tensor([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0]])
    encoded = Encoded(query, query, torch.zeros(2, 3, dtype=torch.bool))
    model, temperatures = recipe_of("demo").model.model_dump(mode="json"), Temperatures(torch.tensor(1.0))

    def loss(of_model: int, **options: Any) -> float:
        chosen = {"name": "vdr", "options": {"nonparametric": 0, **options}}
        recipe = recipe_of("demo", objective=chosen, model={**model, "topk": of_model})
        return compute_objective(recipe.stages[0], recipe.model, [encoded], temperatures).total.item()

    assert loss(1) == loss(2, topk=1) != loss(2)


def test_a_dry_run_counts_what_is_read() -> None:
    images = recipe_of("demo", optimisation={"steps": 3, "batch_size": 4})
    assert describe_plan(images, Path("out"))["images_seen"] == 12
    texts = read_recipe(RECIPES / "vdr-text-paper.yaml", {"optimisation.steps": 2, "optimisation.negatives": 3})
    rows = describe_plan(texts, Path("out"))
    assert (rows["queries_seen"], rows["passages_seen"]) == (512, 2048)


def test_recipes_of_the_project_are_valid() -> None:
    paths = sorted(RECIPES.glob("*.yaml"))
    assert [read_recipe(path).name for path in paths] == [path.stem for path in paths] != []
    assert set(SIDES) == set(get_args(ModelSettings.model_fields["kind"].annotation))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": 1}, "demo-vdr.yaml: modle: unknown key; did you mean 'model'\\?$"),
        ({"optimisation.stpes": 1}, "demo-vdr.yaml: optimisation.stpes: unknown key; did you mean 'steps'\\?$"),
        ({"stpes": 1, "seed": "x"}, "yaml: stpes: .*'steps'\\?; seed: \"x\", expected an integer$|seed: .*; stpes: "),
        ({"model.kind": "vrd"}, "model: the key 'kind' is 'vrd', expected one of 'vdr-crossmodal', "),
        ({"name": None}, "name: null, expected a text"),
        ({"precision": "bf8"}, "precision: \"bf8\", expected 'no', 'bf16' or 'fp16'"),
        ({"stages": []}, "yaml: .*stages: \\[\\], expected at least 1 entries"),
        ({"objective.name": "vrd"}, "objective.name 'vrd', expected one of vdr"),
        ({"model.image.resolution": 65}, "no multiple of patch_size"),
        ({"optimisation.steps": 0}, "optimisation.steps: 0, expected a number above 0"),
        ({"auxiliaries": [{"name": "namin", "weight": 1}]}, "auxiliary 'namin', expected one of naming"),
        ({"model.kind": "dense-crossmodal"}, "objective.name 'vdr' needs terms as dimensions"),
        ({"regularisers": [{**FLOPS, "name": "l2"}]}, "regulariser 'l2'"),
        ({"objective.options.tokp": 3}, "'vdr' has no options 'tokp'; expected some of temperature, topk"),
        ({"objective.options.topk": "5"}, "'vdr': option topk: \"5\", expected an integer$"),
        ({"objective.options.temperature": 1}, "the temperature is objective.temperature"),
        ({"objective": {"name": "svdr"}}, "'svdr' needs texts on both sides; kind vdr-crossmodal reads images"),
        ({"objective": {"name": "splade_kl"}}, "'splade_kl' needs texts on both sides; kind vdr-crossmodal reads"),
        ({"objective": {"name": "fdt"}}, "'fdt' needs a codebook"),
        ({"regularisers": [{**FLOPS, "options": {"treshold": 3}}]}, "'flops' has no options 'treshold'; .* threshold"),
        ({"auxiliaries": [{"name": "naming", "weight": 1, "options": {"heat": 1}}]}, "'naming' has no options 'heat'"),
        ({"regularisers": [{**FLOPS, "name": "l1", "ramp": "n+1"}]}, "ramp: \"n\\+1\", expected 'n-1'"),
        ({"model.text.heads": 3}, "model.text: .*width 128 is no multiple of heads 3"),
        ({"model.image.patch_size": 16}, "a stem of 3 stages has stride 8, not 16"),
        ({"model.image.stem.blocks": [0, 1]}, "3 widths and 2 blocks"),
        ({"model.image.stem.blocks": [0, 1, -1]}, "blocks.2: -1, expected at least 0"),
        ({"optimisation.betas": [0.9, 1.0]}, "betas.1: 1.0, expected a number below 1"),
        ({"optimisation.learning_rate": float("inf")}, "learning_rate: inf, expected a finite number"),
    ],
)
def test_a_recipe_that_does_not_fit_raises(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_recipe(RECIPES / "demo-vdr.yaml", change)


def test_a_value_that_an_objective_lacks_raises_before_training() -> None:
    for option, value, message in (
        ("distillation", "two-way", "\"two-way\", expected 'both', 'one-way' or 'none'$"),
        ("mix", "blip", "\"blip\", expected 'albef-coco'"),
        ("inter", "1", '"1", expected a number'),
    ):
        with pytest.raises(UsageError, match=f"'joint': option {option}: {message}"):
            read_recipe(RECIPES / "joint-small.yaml", {f"objective.options.{option}": value})


def test_a_recipe_of_the_package_has_a_name_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_recipe(Path("demo-vdr")) == read_recipe(RECIPES / "demo-vdr.yaml")
    (tmp_path / "demo-vdr").write_text("- a\n")
    with pytest.raises(UsageError, match="demo-vdr: expected keys and values"):
        read_recipe(Path("demo-vdr"))


def test_files_and_changes_that_are_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none.yaml: no such recipe; .* of the package: .* demo-dense, demo-vdr, "):
        read_recipe(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match=r"demo-vrd: no such recipe; did you mean 'demo-vdr'\?"):
        read_recipe(Path("demo-vrd"))
    assert parse_changes({"optimisation.betas": "[0.8, 0.9]"}) == {"optimisation.betas": [0.8, 0.9]}
    with pytest.raises(UsageError, match=r"--set optimisation.betas: not YAML"):
        parse_changes({"optimisation.betas": "[0.8"})
    (path := tmp_path / "twice.yaml").write_text("seed: 1\noptimisation: {steps: 1}\noptimisation: {steps: 2}\n")
    with pytest.raises(UsageError, match="twice.yaml: not YAML: 'optimisation' is there twice .* line 3"):
        read_recipe(path)


@pytest.mark.parametrize("name", ["demo-dense", "demo-vdr", "photos-dense", "photos-vdr", "lexvl-mini"])
def test_what_the_package_contains_was_trained_by_the_recipe(name: str) -> None:
    about, recipe = json.loads((ASSETS / name / "training.json").read_text()), {"lexvl-mini": "vdr-text-small"}
    assert check_recipe(about["recipe"], name) == read_recipe(RECIPES / f"{recipe.get(name, name)}.yaml")
    assert (ASSETS / name / "log.jsonl").is_file()


def test_a_batch_larger_than_the_corpus_raises(corpus: str, tmp_path: Path) -> None:
    recipe = recipe_of(corpus, optimisation={"steps": 1, "batch_size": 64})
    with pytest.raises(UsageError, match="batch_size 64 is more than the 12 training images"):
        train(recipe, tmp_path, device="cpu")


def test_the_vocabulary_is_the_words_by_frequency(tmp_path: Path) -> None:
    tokens = learn_words(["A red ball", "a RED cube", "red, blue"], 2000)
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and tokens[-1] == "red"
    tokenizer = save_tokenizer(tokens, tmp_path, 8)
    assert tokenizer.tokenize("Red bat") == ["red", "b", "##a", "##t"]
    columns = make_ascii_columns(tokenizer, FIRST_TOKEN_ID)
    assert len(columns.vocabulary) == len(tokens) - 5
    assert tokens[FIRST_WORD_ID - 1] == "##z" and tokens[FIRST_WORD_ID:] == ["red"]
    with pytest.raises(UsageError, match="expected more than"):
        learn_words(["a b"], 100)
    with pytest.raises(UsageError, match="0 words"):
        learn_words(["once only"], 2000)


def test_batches_are_a_function_of_seed_and_step(corpus: str, tmp_path: Path) -> None:
    from lexvl_anserini.data.dataset import load_dataset
    from lexvl_anserini.encoders.parts.images.pixels import Pixels
    from lexvl_anserini.encoders.parts.tokens import TextReader

    captioned = read_captioned(load_dataset(corpus, "train", None, direction="text-to-image"))
    tokenizer = save_tokenizer(learn_words(captioned.texts, 2000), tmp_path / "words", 12)
    columns, prepare = make_ascii_columns(tokenizer, FIRST_TOKEN_ID), Pixels(16)
    kept = (Cache(tmp_path), "training", captioned.digest())
    pixels = read_pixels(captioned.images, prepare, *kept)
    assert (read_pixels(captioned.images, prepare, *kept) == pixels).all()
    captions = TextStore.make(add_types(TextReader(tokenizer, 12)(captioned.texts)), columns, 0)
    assert captioned.first.tolist() == list(range(0, 26, 2))

    def make(seed: int) -> Batches:
        cpu = torch.device("cpu")
        images = PixelStore(pixels, prepare, Augmentation(shift=1, zoom=0.8), cpu)
        return Batches(images, captions, captioned.first, 4, 2, seed)

    def views(batches: Batches, step: int) -> torch.Tensor:
        documents = batches[step].documents
        assert isinstance(documents, ImageBatch)
        return documents.values

    one, again, other = make(1), make(1), make(2)
    assert torch.equal(views(one, 5), views(again, 5)) and not torch.equal(views(one, 5), views(other, 5))
    first, second = one[0].rounds
    assert not torch.equal(first.bag, second.bag)  # two different captions of each image
    epoch = torch.cat([views(one, step) for step in range(3)])
    assert len(epoch) == 12 and one.per_epoch == 3
    words = {columns.vocabulary[int(d)] for d in first.bag[0].nonzero().flatten()}
    assert "square" in words and words <= {"a", "the", "is", "with", "square", "grey", "bar", *COLOURS}


def store_of(*rows: list[int]) -> TextStore:
    """Texts of token ids, in which 4, 5 and 6 are the terms a, b and c."""

    class Fake:
        vocabulary = ("a", "b", "c")
        of_token = np.array([-1, -1, -1, -1, 0, 1, 2])

    return TextStore.make(add_types(rows), Fake(), 0)  # type: ignore[arg-type]


def test_a_bag_has_the_words_and_no_padding() -> None:
    batch = store_of([2, 5, 3], [2, 3]).read_batch(np.array([0, 1]))
    assert batch.bag.tolist() == [[False, True, False], [False, False, False]]
    assert batch.attention.tolist() == [[1, 1, 1], [1, 1, 0]]


def test_the_share_of_an_image_s_captions_that_hold_a_term() -> None:
    # Image 0: "a b b" and "b"; image 1: "a". A repeated word counts once.
    terms = CaptionTerms.count(store_of([2, 4, 5, 5, 3], [2, 5, 3], [2, 4, 3]), np.array([0, 2, 3]))
    assert terms.shares.toarray().tolist() == [[0.5, 1, 0], [1, 0, 0]]
    assert terms.get_shares(np.array([1])).tolist() == [[1, 0, 0]] and terms.frequency.tolist() == [0.75, 0.5, 0]


def test_augmentation_moves_without_turning() -> None:
    pixels = torch.arange(16.0).reshape(1, 1, 4, 4).expand(2, 3, 4, 4)
    draws = np.random.default_rng(0)
    assert augment(pixels, Augmentation(), draws) is pixels
    mirrored = augment(pixels, Augmentation(flip=True), np.random.default_rng(3))
    torch.testing.assert_close(mirrored.sum(), pixels.sum())
    moved = augment(pixels, Augmentation(shift=1), draws)
    assert (moved.diff(dim=3) >= -1e-5).all() and not torch.equal(moved, pixels)


def test_hit_rates_by_hand_and_equal_scores_by_position() -> None:
    scores, owner = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.4]]), torch.tensor([0, 1, 1])
    assert compute_hit_rates(scores, owner)[1] == pytest.approx(66.67)
    assert compute_backward_rates(scores.T, owner)[1] == 100.0
    flat = torch.zeros(4, 4)
    assert compute_hit_rates(flat, torch.arange(4))[1] == compute_backward_rates(flat, torch.arange(4))[1] == 25.0
    # Image 0 has captions 0 and 2, image 1 captions 1 and 3; caption 1 ties with image 0's best, which comes later.
    scores = torch.tensor([[0.1, 0.9, 0.9, 0.0], [0.5, 0.5, 0.1, 0.5]])
    assert compute_backward_rates(scores, torch.tensor([0, 1, 0, 1]))[1] == 0.0
    with pytest.raises(UsageError, match="scores that are no numbers"):
        compute_hit_rates(torch.full((2, 2), torch.nan), torch.arange(2))


def test_words_that_connect_are_in_the_list_and_what_an_image_shows_is_in_none():
    assert {"a", "the", "of", "with", "and", "is", "are", "his", "their", "not", "some", "s"} <= load_function_words()
    assert len(load_function_words()) > 200
    shown = {"dog", "red", "two", "outside", "man", "running", "front", "water", "black"}
    assert not shown & (load_function_words() | read_words(LEFT_OUT))
    assert {"african", "gorilla"} <= read_words(LEFT_OUT)


@pytest.mark.parametrize("path", [FUNCTION_WORDS, LEFT_OUT], ids=lambda path: path.name)
def test_each_word_is_one_lower_case_word_and_has_one_place(path: Path):
    words = [word for line in path.read_text().splitlines() if not line.startswith("#") for word in line.split()]
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert all(word.isascii() and word.isalpha() and word == word.lower() for word in words)
    assert len(words) == len(read_words(path))


def test_a_full_disk_ends_training_in_one_line(corpus: str, trained: Path, tmp_path: Path) -> None:
    """Before, it died by SIGBUS in the middle of the images, without a word."""
    with mounted(tmp_path / "small", "16k") as disk:
        for size in (16, 20, 24, 28, 32, 40, 64, 96, 128, 160, 192, 256):
            resize(disk, f"{size}k")
            with pytest.raises(ArtefactError, match=r"small/run.*: the disk is full.*free some space"):
                train(recipe_of(corpus), disk / "run", device="cpu")
        resize(disk, "16m")
        assert same_weights(train(recipe_of(corpus), disk / "run", device="cpu"), trained)
        assert sorted(path.name for path in (disk / "run").glob("*.part")) == []


def test_no_room_for_the_images_says_how_much_is_needed(corpus, tmp_path, monkeypatch):
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    expected = rf"stored-pixels-training-\w{{16}}.npy: the disk is full \({12 * 16 * 16 * 3:,} bytes need"
    with pytest.raises(ArtefactError, match=expected):
        train(recipe_of(corpus), tmp_path, device="cpu")
    assert not list(tmp_path.glob("stored-*"))


def test_killed_training_ends_with_the_same_weights(corpus: str, trained: Path, tmp_path: Path) -> None:
    """At some of its calls; the attack chooses others at random."""
    with faults(tmp_path / "whole") as whole:
        train(recipe_of(corpus), tmp_path / "whole", device="cpu")
    renaming = [n for n, call in enumerate(whole.calls, 1) if call.startswith(("replace", "rename", "exchange"))]
    chosen = {*renaming[2::4], renaming[-1], len(whole.calls)}
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    for number in sorted(chosen):
        folder = tmp_path / str(number)
        with pytest.raises(Ended), faults(folder, number, after=number % 2 == 0):
            train(recipe_of(corpus), folder, device="cpu")
        assert same_weights(train(recipe_of(corpus), folder, device="cpu"), trained), whole.calls[number - 1]
        assert sorted(path.name for path in folder.iterdir()) == names, whole.calls[number - 1]


@pytest.mark.parametrize("kilobytes", [1, 20, 40])
def test_a_limit_of_file_sizes_ends_training_in_one_line(kilobytes, corpus, tmp_path):
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, most))
    try:
        with pytest.raises(ArtefactError, match="ulimit -f"):
            train(recipe_of(corpus), tmp_path / "run", device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
