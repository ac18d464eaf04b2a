"""`lexvl publish`: the files of a site, and in Chromium the same hits and scores as the engine's."""

import base64
import json
import random
import re
import shutil
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from colour_towers import painted
from scipy import sparse

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_anserini.queries.clauses import TreeQuery
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.search import EncoderChanges, parse_cut
from lexvl_anserini.searching.searcher import Searcher
from lexvl_anserini.shards.layout import Layout
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.serve import publish as publishing
from lexvl_plugins.serve.indexes import ServedIndex

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=alert(1)>"
CAMERA = "a secret camera"
ALPHA = EncoderChanges(options={"mode": "alpha"}, device="cpu")

# Words of the drawn world, words that are split, and characters that a tokenizer drops, changes or takes apart.
WORDS = ["red", "blue", "Square", "circle", "a", "two", "snowboarders", "CAFÉ", "Zürich", "don't", "x-ray", "dog's"]
SIGNS = [*"\u200b\t\u00a0…’狗\ufffd\u0301", "ΣΑΣ", "[SEP]", "[MASK]", *"İﬁ\U0001f415\x07ß"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """An index of eight painted pictures with texts, and its folder."""
    folder = tmp_path_factory.mktemp("publishing")
    pictures = folder / "pictures" / "deep"
    pictures.mkdir(parents=True)
    colours = {"red": (0, 0, 64, 64), "green": (0, 0, 64, 64), "blue": (0, 0, 64, 64)}
    for number in range(6):
        [left, right] = [(0, 0, 32, 64), (32, 0, 64, 64)]
        names = random.Random(number).sample(list(colours), 2)
        painted(64, 64, **{names[0]: left, names[1]: right}).save(pictures / f"{number}.png")
    photo, exif = painted(640, 320, red=(0, 0, 320, 320)), PIL.Image.Exif()
    exif[0x0110] = CAMERA
    exif.get_ifd(0x8769)[0x9003] = "1987:06:05 12:00:00"
    exif.get_ifd(0x8825).update({1: "N", 2: (12.0, 34.0, 12.0), 3: "W", 4: (65.0, 43.0, 12.0)})
    photo.save(pictures / "photo.jpg", exif=exif, comment=CAMERA.encode(), icc_profile=CAMERA.encode())
    (pictures / "photo.txt").write_text(f"{HOSTILE} </script>", encoding="utf-8")
    painted(64, 64, blue=(0, 0, 64, 64)).save(pictures / f"{HOSTILE.replace('/', '')}.png")
    dataset = load_dataset(f"folder:{folder / 'pictures'}", direction="text-to-image", escape_ids=True)
    model = load_encoder("vdr-crossmodal", "demo-vdr", device="cpu")
    write_impacts(dataset, model, folder / "shards", layout=Layout(metadata=True))
    build_index(folder / "shards", folder / "index")
    return folder


@pytest.fixture(scope="module")
def site(drawn):
    """The site of the index."""
    shown = publishing.Publication(map_terms=255, example=["a red square"])
    publishing.publish(ServedIndex("drawn <b>", drawn / "index", ALPHA), drawn / "site", shown)
    return drawn / "site"


def content_of(site: Path, name: str):
    """What a data file hands to the page."""
    script = (site / "data" / f"{name}.js").read_text(encoding="utf-8")
    return json.loads(f"[{script.removeprefix('lexvl(').removesuffix(chr(10)).removesuffix(')')}]")[1]


def test_numbers_of_seven_bits() -> None:
    octets = publishing.split_numbers(np.array([0, 1, 127, 128, 300, 1 << 40])).tolist()
    assert octets == [0, 1, 127, 128, 1, 172, 2, 128, 128, 128, 128, 128, 32]


def test_lists_are_counts_distances_and_impacts() -> None:
    [(first, text)] = publishing.pack_postings(sparse.csr_matrix([[5, 0, 200], [0, 0, 0], [0, 7, 0]]))
    assert (first, list(zlib.decompress(base64.b64decode(text)))) == (0, [2, 1, 2, 5, 200, 1, 0, 1, 2, 7])


def test_related_terms_have_the_same_documents() -> None:
    # Dimensions 0 and 1 share documents 0 to 2; dimension 2 has documents 3 to 5; dimension 3 has too few.
    documents = [[9, 9, 9, 0, 0, 0], [9, 9, 9, 0, 0, 0], [0, 0, 0, 9, 9, 9], [9, 0, 0, 0, 0, 0]]
    assert publishing.relate_terms(sparse.csr_matrix(documents)) == [[1], [0], [], []]


def test_a_grid_is_two_ends_and_steps_between_them() -> None:
    cells = publishing.step(np.array([[0.0, 0.5, 1.0], [0.2, 0.2, 0.2]]))
    # The first grid reaches from 0 to 255 in steps 0, 3.5 (rounded to even) and 7; the second is 51 in all cells.
    assert cells.tolist() == [[0, 255, 0, 4, 7], [51, 51, 0, 0, 0]]


def test_modules_become_join_scripts() -> None:
    script = publishing.join_scripts(['import { a } from "./a.js";\nexport function b() {}\n', "export const c = 1;\n"])
    assert script == '"use strict";\n(() => {\nfunction b() {}\nconst c = 1;\n})();\n'


def test_a_site_holds_every_document_and_no_place(drawn, site) -> None:
    rows = content_of(site, "documents-0")
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert len(rows) == 8 and {row[3] for row in rows} <= {"jpg", "png"}
    assert json.loads((site / "site.json").read_text())["documents"] == 8
    for file in site.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            for secret in (str(drawn), CAMERA, "1987-06-05", "1987:06:05", "12.57", "65.72", "latitude"):
                assert secret.encode() not in content, file
    description = content_of(site, "site")
    assert description["indexes"][0]["name"] == "drawn <b>" and description["examples"] == ["a red square"]
    pictures = {number: PIL.Image.open(site / "pictures" / f"{number}.{row[3]}") for number, row in enumerate(rows)}
    assert max(max(picture.size) for picture in pictures.values()) == 320


def test_ids_are_replaced_by_numbers(drawn) -> None:
    replaced = drawn / "replaced"
    numbered = publishing.Publication(map_terms=0, replace_ids=True)
    publishing.publish(ServedIndex("drawn", drawn / "index", ALPHA), replaced, numbered)
    assert [row[0] for row in content_of(replaced, "documents-0")] == [str(number) for number in range(1, 9)]
    assert not list((replaced / "data").glob("grids-*"))
    assert not any(b"deep" in file.read_bytes() for file in replaced.rglob("*.js"))


def test_only_a_site_is_replaced(drawn, site, tmp_path) -> None:
    served = ServedIndex("drawn", drawn / "index", ALPHA)
    with pytest.raises(ArtefactError, match="exists; --overwrite replaces it"):
        publishing.publish(served, site)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtefactError, match="holds other files than a site"):
        publishing.publish(served, tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(UsageError, match="among the files of the index; name a folder outside"):
        publishing.publish(served, drawn / "index" / "site")


def test_queries_of_a_network_are_refused(drawn, tmp_path) -> None:
    with pytest.raises(UsageError, match="expected one whose queries are bags of words"):
        publishing.publish(ServedIndex("drawn", drawn / "index", EncoderChanges(device="cpu")), tmp_path / "site")
    with pytest.raises(UsageError, match="reads words by the WordPiece of BERT"):
        model = load_encoder("vdr-crossmodal", "demo-vdr", mode="alpha", device="cpu")
        model.query.reader.tokenizer.backend_tokenizer.normalizer = None
        publishing.describe_words(model, Searcher(drawn / "index", model).index.manifest)
    assert not (tmp_path / "site").exists()


def test_a_corpus_that_is_gone_is_an_error(drawn, tmp_path) -> None:
    moved = drawn / "moved"
    (drawn / "pictures").rename(moved)
    try:
        with pytest.raises(DataError, match="the corpus cannot be read"):
            publishing.publish(ServedIndex("drawn", drawn / "index", ALPHA), tmp_path / "site")
    finally:
        moved.rename(drawn / "pictures")


def test_the_command_prints_counts(drawn, capsys) -> None:
    modes = [publishing.find_bag_mode(name) for name in ("vdr-crossmodal", "bag-of-tokens", "none")]
    assert modes == [{"mode": "alpha"}, {}, {}]
    publishing.command(index=drawn / "index", site=drawn / "by-command", map_terms=0, device="cpu", style="json")
    printed = json.loads(capsys.readouterr().out)
    assert printed["documents"] == 8 and printed["maps, bytes"] == 0
    written = [file for file in (drawn / "by-command").rglob("*") if file.is_file() and file.name != "site.json"]
    assert printed["bytes"] == sum(file.stat().st_size for file in written)


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def opened_in(chromium, site):
    """The site opened from the disk; at the end it has had no error and no request elsewhere."""
    problems: list[str] = []
    opened = chromium.new_page()
    opened.set_default_timeout(60_000)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    here = site.resolve().as_uri()
    opened.on("request", lambda request: None if request.url.startswith(here) else problems.append(request.url))
    opened.goto(f"{here}/index.html#q=a+red+square")
    opened.wait_for_selector(".hit .bars li")
    yield opened
    opened.close()
    assert problems == []


@pytest.fixture(scope="module")
def page(chromium, site):
    with opened_in(chromium, site) as opened:
        yield opened


SEARCH = """async ([text, weights, read_as = "text"]) => {
  const question = { index: "drawn", text, weights, read_as, hits: 5 };
  const { hits } = await lexvlSite.request("api/search", question);
  const products = await lexvlSite.request("api/products", { question, doc_ids: hits.map((hit) => hit.doc_id) });
  return [hits.map((hit) => [hit.doc_id, hit.score]), products.map((found) => found.score)];
}"""


def test_documents_like_another_are_kept_in_the_link(page) -> None:
    page.goto(page.url.partition("#")[0] + "#")
    page.reload()
    page.locator(".sample button").nth(2).click()
    page.wait_for_selector(".hit .bars li")
    name = page.locator("#sent-name").inner_text().removeprefix("like ")
    assert any(text.endswith(f" {name}") for text in page.locator(".hit .id").all_inner_texts())
    page.reload()
    page.wait_for_selector(".hit .bars li")
    assert page.locator("#sent-name").inner_text() == f"like {name}"
    page.goto(page.url.partition("#")[0] + "#q=a+red+square")
    page.reload()
    page.wait_for_selector(".hit .bars li")


def hostile_texts(count: int) -> list[str]:
    chance = random.Random(3)
    return ["".join(chance.choice(["", *" -"]) + chance.choice(WORDS + SIGNS) for _ in range(8)) for _ in range(count)]


def test_hits_and_scores_are_those_of_the_engine(searched, page) -> None:
    for text in ["a red square", "two blue circles", "nothing known: xqzzyv", *hostile_texts(100)]:
        expected = [[hit.doc_id, hit.score] for hit in searched.search(text, 5)]
        assert page.evaluate(SEARCH, [text, {}]) == [expected, [score for _, score in expected]], text


@pytest.fixture(scope="module")
def searched(drawn):
    with Searcher(drawn / "index", encoder=ALPHA) as searcher:
        yield searcher


def random_expression(chance: random.Random, depth: int = 3) -> str:
    """An expression over colours and shapes with signs, factors, brackets and operators."""
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(["red", "blue", "green", '"white"', "black"]) + chance.choice(["", "", "^3", "^0"])
    below = [random_expression(chance, depth - 1) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.4:
        return "(" + chance.choice([" AND ", " OR "]).join(below) + ")" + chance.choice(["", "^2"])
    return "(" + " ".join(chance.choice(["", "+", "-", "NOT "]) + part for part in below) + ")"


def test_signs_are_those_of_the_engine(searched, page) -> None:
    chance = random.Random(7)
    texts = ["+red -blue", "-red", "NOT red", "red^3 blue", "+red^3 +blue", "red (-blue)", "red -blue OR green"]
    for text in [*texts, *(random_expression(chance) for _ in range(200))]:
        expected = [[hit.doc_id, hit.score] for hit in searched.search(TreeQuery("typed", parse(text)), 5)]
        found = page.evaluate(SEARCH, [text, {}, "terms"])
        assert found == [expected, [score for _, score in expected]], text
    assert page.evaluate(SEARCH, ["+red -blue", {}, "auto"]) == page.evaluate(SEARCH, ["+red -blue", {}, "terms"])
    # A term of weight 0 adds nothing, and must still match.
    without, with_red = (page.evaluate(SEARCH, [*one, "auto"])[0] for one in (("+red blue", {"red": 0}), ("+red", {})))
    assert sorted(doc for doc, _ in without) == sorted(doc for doc, _ in with_red)


def test_what_signs_the_page_does_not_read_is_one_line(page) -> None:
    for text, line in {
        "+xqzzyv": "term 'xqzzyv' is not in the vocabulary of the index",
        "red^1.5": "takes whole factors alone",
        "+meta.year:[2010 TO 2020]": "searches terms alone, not fields",
        "+red -(": "at its end: expected a term, a field or a bracket",
        "red) +blue": "no bracket is open here",
        "red^9999999": "above 16,777,215 up to which scores are exact",
        "(" * 51 + "+red": "in more than 50 others",
    }.items():
        with pytest.raises(Exception, match=re.escape(line)):
            page.evaluate(SEARCH, [text, {}, "auto"])


def test_weights_change_scores_by_their_products(page) -> None:
    [hits, _] = page.evaluate(SEARCH, ["a red", {"red": 0, "blue": 3}])
    [once, _] = page.evaluate(SEARCH, ["", {"blue": 1}])
    assert hits == [[doc_id, 3 * score] for doc_id, score in once]


def test_a_least_score_is_that_of_the_engine(drawn, page) -> None:
    search = """async (cut) => {
      const { hits, nearest } = await lexvlSite.request("api/search",
        { index: "drawn", text: "a red picture", weights: {}, hits: 8, min_score: cut });
      return [hits.map((hit) => [hit.doc_id, hit.score]), nearest];
    }"""
    with Searcher(drawn / "index", encoder=ALPHA) as searcher:
        every = [[hit.doc_id, hit.score] for hit in searcher.search("a red picture", 8)]
        counts = []
        for text in ("60%", "90%", f"{every[1][1]:.0f}"):
            cut = [[hit.doc_id, hit.score] for hit in searcher.search("a red picture", 8, min_score=parse_cut(text))]
            counts.append(len(cut))
            assert page.evaluate(search, text) == [cut or every, not cut], text
    assert counts[0] > counts[1] and page.evaluate(search, "999999999") == [every, True]


def test_the_page_shows_hits_maps_and_a_link(page) -> None:
    cards = page.locator(".hit")
    first = cards.first
    assert first.locator(".bars li").count() >= 1
    first.locator(".picture").hover()
    first.locator("canvas").wait_for(state="attached")
    page.locator("#query").fill("blue")
    page.wait_for_function("location.hash === '#q=blue'")
    page.get_by_role("button", name="Leave out blue").click()
    page.wait_for_function("location.hash.includes('weights')")
    page.reload()
    page.wait_for_selector(".chip.out")
    page.locator("#query").fill("+red -blue")
    page.wait_for_function("document.querySelector('.ran').textContent.includes('read as terms')")
    assert page.locator(".chip .term").all_inner_texts() == ["red"]
    page.locator("#read-as").select_option("text")
    page.wait_for_function("document.querySelectorAll('.chip').length === 2")
    page.locator("#query").fill("xqzzyv")
    page.wait_for_function("document.querySelector('.problem').textContent.startsWith('no word of this query')")
    assert page.locator("#where").is_hidden() and page.locator("h2").first.inner_text() == "drawn <b>"
