"""Whether terms are words of captions and classes, and images prefer complete sentences: rules, shares, commands."""

import json

import numpy as np
import pytest
from colour_towers import COLOURS, colour_tower, painted
from invoking import invoked
from lexvl_eval.analyses.sentence_pairs import collect_words
from tiny_encoders import WORDPIECES, made_stair, made_twin

import eval.analyses.interpretability as measured
from eval.analyses.classes.class_sets import ImageClasses, LabelledImages
from eval.analyses.classes.classification import (
    NO_ANSWER,
    ClassWordShares,
    WordSpace,
    build_dense_space,
    build_lexical_space,
    measure_class_words,
    rank_words,
)
from eval.analyses.interpretability import (
    NamedWords,
    collect_caption_words,
    command,
    compare_rankings,
    find_frequent_words,
    take_first_terms,
)
from eval.analyses.sentence_pairs import (
    CompletenessShare,
    SentencePair,
    compare_sentences,
    format_sentence,
    load_sentence_pairs,
    make_caption_pairs,
    split_caption,
)
from eval.options import ImageEncoderOptions
from lexvl_anserini.data.dataset import Dataset
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_anserini.ground.records import Document, ImpactDocument, Qrel, Topic
from tests.eval.test_classify import model as words_and_colours
from tests.eval.test_classify import silent
from tests.shards.test_reading import write_shards

CAPTIONS = {"1": "A man's dog runs.", "2": "Two dogs on the SAND", "3": "Ein Hündchen", "4": "a dog"}
JUDGED = [Qrel("1", "i1", 1), Qrel("2", "i1", 1), Qrel("3", "i2", 1), Qrel("4", "i3", 1), Qrel("2", "i3", 0)]
VECTORS = [
    ("i1", {"the": 90, "sand": 50, "dog": 50, "##ing": 7}),
    ("i2", {"hündchen": 3, "dog": 2}),
    ("i3", {"cat": 9, "dogs": 8}),
]
TERMS = ["##ing", "cat", "dog", "dogs", "hündchen", "sand", "the"]


def dataset(qrels=JUDGED, direction="text-to-image"):
    def topics():
        return iter(Topic(*topic) for topic in CAPTIONS.items())

    images = [Document(doc_id, image="x.png") for doc_id, _ in VECTORS]
    return Dataset("toy", "test", lambda: iter(images), topics, lambda: iter(qrels), direction=direction)


def documents(vectors=VECTORS):
    return [ImpactDocument(doc_id, vector) for doc_id, vector in vectors]


def test_words_are_letters_in_lower_case_without_function_words():
    assert collect_words("A man's dog, 2 dogs on the SAND; skate-board über") == frozenset(
        ["man", "dog", "dogs", "sand", "skate", "board", "über"]
    )
    assert collect_words("") == collect_words("the of 3 !") == frozenset()


def test_the_words_of_all_relevant_captions():
    words = {"i1": {"man", "dog", "runs", "two", "dogs", "sand"}, "i2": {"ein", "hündchen"}, "i3": {"dog"}}
    assert collect_caption_words(dataset()) == words
    with pytest.raises(UsageError, match="toy is image-to-text; expected images that captions describe"):
        collect_caption_words(dataset(direction="image-to-text"))


def test_first_terms_are_the_heaviest_then_alphabetical():
    assert take_first_terms({"b": 1, "a": 1, "C": 9}) == ["c", "a", "b"]
    assert len(take_first_terms({f"t{n}": 1 for n in range(99)})) == 10
    assert take_first_terms({}) == []
    assert find_frequent_words([frozenset("ab"), frozenset("bc"), frozenset("c")])[:3] == ["b", "c", "a"]


def test_shares_by_hand():
    [model, frequent, another] = compare_rankings("toy", documents(), collect_caption_words(dataset()))
    # i1: the (function word), dog, sand: named from place 2, two words; i2: at once, one; i3: dogs is not dog.
    assert model == NamedWords("toy", 3, 1 / 3, 2 / 3, 2 / 3, 1.0)
    # dog is in captions of two images, then one each: dogs, ein, hündchen, man, runs, sand, two.
    assert frequent == NamedWords("most frequent", 3, 2 / 3, 1.0, 1.0, (6 + 2 + 1) / 3)
    # hündchen, dog with i1; cat, dogs with i2; the, dog, sand with i3.
    assert another == NamedWords("another image", 3, 0.0, 2 / 3, 2 / 3, 2 / 3)


def test_images_without_captions_are_left_out(caplog):
    captions = {doc_id: words for doc_id, words in collect_caption_words(dataset()).items() if doc_id != "i2"}
    assert [row.images for row in compare_rankings("toy", documents(), captions)] == [2, 2, 2]
    assert "1 images without captions are left out" in caplog.text
    with pytest.raises(DataError, match="0 of 3 images have captions; expected at least 2"):
        compare_rankings("toy", documents(), {})
    # An image without terms names nothing.
    [model, *_] = compare_rankings("toy", documents([("i1", {}), ("i3", {"dog": 1})]), collect_caption_words(dataset()))
    assert model[1:] == (2, 0.5, 0.5, 0.5, 0.5)


def test_the_command_reads_stored_impacts(tmp_path, monkeypatch):
    write_shards(tmp_path / "shards", VECTORS, terms=TERMS)
    monkeypatch.setattr("lexvl_anserini.data.dataset.load_reference", lambda ref: dataset())
    head, _, frequent, another = invoked(command, "--shards", tmp_path / "shards").splitlines()
    assert head.split() == ["ranking", "images", "top", "1", "%", "top", "5", "%", "top", "10", "%", "of", "10"]
    assert frequent.split() == ["most", "frequent", "3", "66.7", "100.0", "100.0", "3.00"]
    assert another.split() == ["another", "image", "3", "0.0", "66.7", "66.7", "0.67"]
    assert '"words_in_10": 3.0' in invoked(command, "--shards", tmp_path / "shards", "--format", "json")
    assert measured.measure_shards(tmp_path / "shards")[0].top_5 == pytest.approx(2 / 3)


def test_ranks_of_labels_by_hand():
    weights = np.array([[0.0, 3.0, 1.0, 2.0], [5.0, 5.0, 0.0, 0.0], [-np.inf, 1.0, -np.inf, 2.0], [4.0, 3.0, 2.0, 1.0]])
    # The best of 1 and 2; a tie; no weight; no tokens.
    assert rank_words(weights, [[2, 3], [1], [0, 2], []]).tolist() == [2, 1, NO_ANSWER, NO_ANSWER]


@pytest.mark.shared
def test_ranks_are_the_oracles(shared):
    """The ranks of golden/stair, by the equations of the paper."""
    oracle = json.loads((shared / "golden/stair/formula_oracle.json").read_text())["interpretability"]
    weights = np.load(shared / "golden/stair/formula_oracle.npz")["enc_img"]
    ranks = rank_words(weights, [oracle["class_tokens"][label] for label in oracle["labels"]])
    assert ranks.tolist() == oracle["rank_of_label"]
    assert [(ranks <= k).mean() for k in (1, 10)] == [oracle["top1"], oracle["top10"]]


def colours() -> LabelledImages:
    """A red image, a green one with blue, and a red one that is called blue; blue is also called azure."""
    box = (0, 0, 8, 8)
    shown = [painted(8, 8, red=box), painted(8, 8, green=box, blue=(0, 0, 8, 3)), painted(8, 8, red=box)]
    classes = ImageClasses(("red", "blue", "none"), (("red",), ("azure", "blue"), ("unheard of",)))
    return LabelledImages("toy", shown, np.array([0, 1, 1]), classes)


def colour_space() -> WordSpace:
    tower = colour_tower(1)
    return WordSpace(
        lambda images: np.where((found := tower.dense_weights(images)) > 0, found, -np.inf),
        lambda names: [[COLOURS.index(name)] if name in COLOURS else [] for name in names],
    )


def test_shares_of_class_words_by_hand(monkeypatch, caplog):
    monkeypatch.setattr("eval.analyses.classes.classification.WEIGHTED_AT_ONCE", 2)
    advanced = []
    [model, mean] = measure_class_words("toy", colour_space(), colours(), advanced.append)
    # red is first, blue second after green, blue has no weight; on average red 2/3, green .2, blue .1.
    assert model == ClassWordShares("toy", "toy", 3, 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3)
    assert mean == ClassWordShares("mean of the images", "toy", 3, 3, 1 / 3, 1.0, 1.0, 1.0)
    assert advanced == [2, 1]
    assert "1 classes have no word in the vocabulary: unheard of" in caplog.text


def test_words_of_a_dense_encoder(golden, tmp_path):
    """Every word of the vocabulary is encoded as a text; the weight of a word is its cosine with the image."""
    model = load_encoder("dense-crossmodal", str(made_twin(golden, tmp_path)), device="cpu")
    space = build_dense_space(model, str(golden / WORDPIECES), 32)
    image = painted(32, 32, red=(0, 0, 9, 9))
    [weights] = space.weights([image])
    [[first, *more]] = space.words(["dog"])
    assert more == [] and weights[first] == pytest.approx(
        float(model.query.vectors(["dog"])[0] @ model.document.vectors([image])[0]), abs=1e-6
    )
    assert space.words(["Dog", "a dog", ""])[0] == [first] and first in space.words(["a dog"])[0]


def test_the_command_ranks_words_of_classes(golden, tmp_path):
    for name in ("dog/1", "dog/2", "beach/1"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        painted(32, 32, red=(0, 0, 9, 9 + int(name[-1]))).save(tmp_path / f"set/{name}.png")
    stair = ["--encoder", "stair", "--checkpoint", made_stair(golden, tmp_path), "--device", "cpu"]
    shown = invoked(command, "--images", tmp_path / "set", *stair)
    head, model, mean = (line.split() for line in shown.splitlines())
    assert " ".join(head) == "ranking dataset images classes top 1 % top 10 % top 50 % top 100 %"
    assert model[:4] == ["stair", "set", "3", "2"] and mean[:4] == ["mean", "of", "the", "images"]
    for given in ([], ["--images", "x", "--shards", "y"], ["--images", "x", "--pairs", "y"]):
        with pytest.raises(UsageError, match="give --shards"):
            invoked(command, *given)


@pytest.mark.shared
def test_anonymous_terms_are_no_words(shared):
    """FDT's terms are numbers of a codebook; no word has a rank among them."""
    model = load_encoder("fdt", str(shared / "golden/fdt"), device="cpu")
    with pytest.raises(UsageError, match="the terms of encoder 'fdt' are no words but 'fdt00000' and so on"):
        build_lexical_space(model, 2).words(["dog"])


@pytest.mark.parametrize(
    ("caption", "found"),
    [
        *(("Two dogs , and a man with a ball .", "Two dogs"), ("A man WITH a hat", "A man")),
        *((text, None) for text in ("A handstand without shoes", "and a dog", "The and a dog", "A dog and .", "A dog")),
    ],
)
def test_a_partial_caption_ends_before_and_or_with(caption, found):
    assert split_caption(caption) == found


def test_pairs_of_annotated_objects(tmp_path):
    """Image 1 has three categories, one of them twice, hence three pairs; image 2 has one, hence none."""
    assert format_sentence(["dog"]) == "a photo of a dog"
    assert format_sentence(["cat", "apple"]) == "a photo of a cat and an apple"
    path = tmp_path / "instances.json"
    objects = [(1, 18), (1, 1), (1, 18), (1, 3), (2, 1)]
    found = {
        "categories": [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}, {"id": 18, "name": "dog"}],
        "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
        "annotations": [{"image_id": image, "category_id": category} for image, category in objects],
    }
    path.write_text(json.dumps(found))
    pairs = load_sentence_pairs(f"{path},{tmp_path / 'train'}")
    assert {pair.image for pair in pairs} == {str(tmp_path / "train/1.jpg")}
    assert {pair.complete for pair in pairs} == {"a photo of a car, a dog and a person"}
    partial = [pair.partial.removeprefix("a photo of ") for pair in pairs]
    assert partial == ["a dog and a person", "a car and a person", "a car and a dog"]
    with pytest.raises(UsageError, match="instances.json names no images; expected .*instances.json,IMAGES"):
        load_sentence_pairs(str(path))
    path.write_text(json.dumps({**found, "annotations": [{"image_id": 1}]}))
    with pytest.raises(DataError, match=r"no annotations of objects as COCO's \('category_id' is missing"):
        load_sentence_pairs(f"{path},train")
    path.write_text(json.dumps({**found, "annotations": []}))
    with pytest.raises(DataError, match="no pair of sentences in it"):
        load_sentence_pairs(f"{path},train")


def test_pairs_of_a_list(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("image\tcomplete\tpartial\na.png\ta dog, a cat\ta dog\n")
    assert load_sentence_pairs(str(path)) == [SentencePair(str(tmp_path / "a.png"), "a dog, a cat", "a dog")]
    path.write_text("a.png\ta dog\ta dog\n")
    with pytest.raises(DataError, match="pairs.tsv line 1: the two sentences are equal: 'a dog'"):
        load_sentence_pairs(str(path))
    path.write_text("a.png\ta dog\n")
    with pytest.raises(DataError, match=r"line 1: 2 columns, expected 3 \(image, complete, partial\)"):
        load_sentence_pairs(str(path))


def test_pairs_of_captions(monkeypatch):
    monkeypatch.setattr(f"{__name__}.CAPTIONS", {"1": "A dog and a man", "2": "A dog", "3": "x and y"})
    assert list(make_caption_pairs(dataset())) == [
        SentencePair("x.png", "A dog and a man", "A dog"),
        SentencePair("x.png", "x and y", "x"),
    ]
    with pytest.raises(UsageError, match="toy is image-to-text; expected images that captions describe"):
        list(make_caption_pairs(dataset(direction="image-to-text")))


def pairs(folder) -> list[SentencePair]:
    """An image half red, half blue, and one that is green."""
    painted(8, 8, red=(0, 0, 8, 4), blue=(0, 4, 8, 8)).save(folder / "both.png")
    painted(8, 8, green=(0, 0, 8, 8)).save(folder / "green.png")
    both, green = str(folder / "both.png"), str(folder / "green.png")
    sentences = ("red and blue", "red"), ("green and red", "green"), ("blue and green", "blue"), ("red, red", "red")
    return [SentencePair(image, *pair) for image, pair in zip((both, green) * 2, sentences, strict=True)]


def test_shares_of_pairs_by_hand(tmp_path, monkeypatch):
    """The first image gains by naming blue too: .7 instead of .5. Green loses by red, and the first image by green.

    With the other image, "green and red" (.35 instead of 0) and "blue and green" (.7 instead of 0) gain. Equal vectors
    are no gain.
    """
    expected = [CompletenessShare("toy", "four", 2, 4, 0.25), CompletenessShare("another image", "four", 2, 4, 0.5)]
    assert compare_sentences(words_and_colours(), "four", pairs(tmp_path), progress=silent) == expected
    monkeypatch.setattr("eval.analyses.sentence_pairs.IMAGES_AT_ONCE", 1)
    assert compare_sentences(words_and_colours(), "four", pairs(tmp_path), progress=silent) == expected
    with pytest.raises(DataError, match="one: pairs of 1 images, expected at least 2"):
        compare_sentences(words_and_colours(), "one", pairs(tmp_path)[:1], progress=silent)


def test_the_command_compares_sentences(tmp_path, monkeypatch):
    rows = "".join(f"{image}\t{complete}\t{rest}\n" for image, complete, rest in pairs(tmp_path))
    (tmp_path / "pairs.tsv").write_text(rows)
    monkeypatch.setattr(ImageEncoderOptions, "load", lambda self: words_and_colours())
    head, own, other = (line.split() for line in invoked(command, "--pairs", tmp_path / "pairs.tsv").splitlines())
    assert " ".join(head) == "ranking dataset images pairs complete first %"
    assert own[2:] == ["2", "4", "25.0"] and other[:2] == ["another", "image"]
