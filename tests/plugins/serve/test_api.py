"""The API of the search page over real HTTP: answers, products, maps, pictures; what bad requests get; weights."""

import io
import json
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from types import SimpleNamespace
from urllib.parse import quote, urlencode

import PIL.Image
import pytest
from brute_force import Doc, Oracle
from colour_towers import painted
from hypothesis import assume, given
from hypothesis import strategies as st

from lexvl_anserini.data.dataset import load_dataset
from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.ground.errors import ArtefactError, UsageError
from lexvl_anserini.queries.clauses import All, AnyOf, Boost, Equals, Impacts, Not, Term, Unscored
from lexvl_anserini.queries.parser import parse
from lexvl_anserini.searching.building import build_index
from lexvl_anserini.searching.shared_terms import find_shared_terms
from lexvl_anserini.shards.writing import write_impacts
from lexvl_plugins.serve import indexes, limits
from lexvl_plugins.serve.documents import Recent
from lexvl_plugins.serve.indexes import name_indexes
from lexvl_plugins.serve.messages import hide_places
from lexvl_plugins.serve.queries import change_weights, reweigh
from lexvl_plugins.serve.serve import try_query
from tests.plugins.serve.served_colours import (
    CAPTION,
    HOSTILE,
    PICTURES,
    index_pictures,
    load,
    running,
    serving,
    wait_for,
)


def save(picture, kind: str, **options) -> bytes:
    out = io.BytesIO()
    picture.save(out, format=kind, **options)
    return out.getvalue()


png = partial(save, kind="PNG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def client(folder):
    with serving(folder, dense=True, examples=("red", "blue")) as found:
        yield found


@pytest.fixture(autouse=True)
def toy(monkeypatch) -> None:
    monkeypatch.setattr("lexvl_anserini.searching.search.load_encoder_from", load)
    monkeypatch.setattr(indexes, "LOOK_EVERY_S", 0.0)


HOSTILE_ID = quote(HOSTILE, safe="<>=()")


def ids(answer) -> list[str]:
    return [hit["doc_id"] for hit in answer["hits"]]


def test_a_text_finds_and_its_products_sum_to_the_scores(client) -> None:
    answer = client.ask(text="a red and blue picture")
    assert answer["read_as"] == "text"
    assert {chip["term"]: chip["weight"] for chip in answer["chips"]} == {"red": 255, "blue": 255}
    assert ids(answer)[0] == "half.png"
    question = {"index": "colours", "text": "a red and blue picture"}
    status, found = client.post("/api/products", {"question": question, "doc_ids": ids(answer)})
    assert status == 200
    for hit, one in zip(answer["hits"], found, strict=True):
        assert one["doc_id"] == hit["doc_id"]
        assert sum(p["product"] for p in one["products"]) == one["score"] == hit["score"]
        assert one["rest"] == 0
    assert [p["term"] for p in found[0]["products"]] == ["blue", "red"]


def test_weights_change_and_leave_out_terms(client) -> None:
    before = client.ask(text="red blue")
    halved = client.ask(text="red blue", weights={"red": 100})
    without = client.ask(text="red blue", weights={"red": 0})
    assert {c["term"]: (c["weight"], c["given"]) for c in halved["chips"]} == {"red": (100, 255), "blue": (255, 255)}
    assert {c["term"]: c["weight"] for c in without["chips"]} == {"red": 0, "blue": 255}
    scores = {hit["doc_id"]: hit["score"] for hit in before["hits"]}
    lower = {hit["doc_id"]: hit["score"] for hit in halved["hits"]}
    assert lower["red.png"] * 255 == scores["red.png"] * 100
    assert "red.png" not in ids(without)
    added = client.ask(text="red", weights={"green": 5})
    assert {c["term"]: (c["weight"], c["given"]) for c in added["chips"]} == {"red": (255, 255), "green": (5, 0)}


def test_expressions_are_read_by_their_signs(client) -> None:
    answer = client.ask(text="+blue -red")
    assert answer["read_as"] == "terms"
    assert ids(answer) == [HOSTILE_ID]
    assert client.ask(text="+blue -red", read_as="text")["read_as"] == "text"
    assert client.ask(text="blue", read_as="terms")["chips"] == [{"term": "blue", "weight": 1, "given": 1}]
    weighted = client.ask(text="+blue red^3", weights={"red": 7})
    assert {c["term"]: c["weight"] for c in weighted["chips"]} == {"red": 7, "blue": 1}
    twin = client.ask(index="twin", text="+blue -red")
    assert twin["read_as"] == "text" and twin["ignored"] == ["signs and factors of the expression"]
    assert ids(twin)[0] in ("half.png", HOSTILE_ID) and twin["warning"] == ""  # "+blue" is the word blue there


def test_filters_restrict_and_keep_scores(client) -> None:
    whole = {hit["doc_id"]: hit["score"] for hit in client.ask(text="red green blue")["hits"]}
    for filters in ({"where": "meta.place:sub"}, {"filters": [{"field": "meta.place", "value": "sub"}]}):
        found = client.ask(text="red green blue", **filters)
        assert {hit["doc_id"]: hit["score"] for hit in found["hits"]} == {"sub/green.png": whole["sub/green.png"]}
    long_names = client.ask(text="red blue", filters=[{"field": "meta.year", "low": "2009"}])
    assert ids(long_names) == [HOSTILE_ID]
    assert ids(client.ask(where="-red +blue")) == [HOSTILE_ID]
    assert client.ask(index="twin", text="red", where="meta.place:sub")["ignored"] == ["filters"]


def test_a_least_score_and_the_nearest(client) -> None:
    whole = client.ask(text="red blue")
    assert len(whole["hits"]) > 1 and whole["nearest"] is False
    best = whole["hits"][0]["score"]
    assert ids(client.ask(text="red blue", min_score=str(best))) == ids(whole)[:1]
    for beyond in (str(best + 1), "100%"):
        answer = client.ask(text="red blue", min_score=beyond)
        assert answer["nearest"] is True and answer["hits"] == whole["hits"]
    assert client.ask(text="red", min_score="100%")["nearest"] is False
    assert client.ask(text="nothing known", min_score="5")["nearest"] is False
    assert ids(client.ask(where="-red +blue", min_score="5")) == [HOSTILE_ID]
    assert client.ask(index="twin", text="red", min_score="0.1")["ignored"] == []
    assert client.ask(index="twin", text="red", min_score="20%")["ignored"] == ["the least score, as a share"]


def test_the_greatest_score_that_a_document_could_have(client) -> None:
    red, green = (client.ask(text=text)["hits"][0]["score"] for text in ("red", "green"))
    assert client.ask(text="red green")["greatest"] == red + green  # no document has both
    assert client.ask(text="red^3 -green")["greatest"] * 255 == 3 * red
    assert client.ask(text="red", weights={"red": 0})["greatest"] == 0
    assert client.ask()["greatest"] is None and client.ask(index="twin", text="red")["greatest"] is None
    status, refused = client.post("/api/search", {"index": "colours", "text": "red", "min_score": "much"})
    assert status == 400 and refused["error"].startswith("least score 'much': expected a score")


def test_an_empty_question_has_no_hits(client) -> None:
    for text in ("", "   "):
        answer = client.ask(text=text)
        assert (answer["read_as"], answer["hits"], answer["chips"]) == ("none", [], [])
    assert client.ask(text="nothing known")["hits"] == []
    assert client.post("/api/products", {"question": {"index": "colours"}, "doc_ids": ["red.png"]}) == (200, [])


def test_a_query_without_a_word_of_the_model_gets_a_warning(client) -> None:
    answer = client.ask(text="xqzzyv")
    assert answer["warning"] == "no word of this query is a term of the model: expect little"
    for known in ("a red xqzzyv", "+red", ""):
        assert client.ask(text=known)["warning"] == ""


def test_an_index_has_the_name_of_its_folder_or_of_its_album_and_equal_ones_get_numbers(tmp_path) -> None:
    places = [tmp_path / "demo", tmp_path / "photos/index", tmp_path / "other/photos/index"]
    named = [served.name for served in name_indexes([*places, tmp_path / "b/demo"], [], "cpu", None)]
    assert named == ["demo", "photos", "photos-2", "demo-2"]


def test_examples_of_a_corpus_without_topics_are_heavy_terms(tmp_path) -> None:
    with running(index_pictures(tmp_path / "pictures", tmp_path / "colours")) as client:
        found = client.get("/api/indexes")
        # Of half.png, red.png, sub/green.png and the one with blue alone; a picture has no term of the other colours.
        assert sorted(found["examples"]) == ["blue", "blue red", "green", "red"]
        assert set(found["pictures"]["colours"]) == {"half.png", "red.png", "sub/green.png", HOSTILE_ID}


def test_a_picture_and_a_document_are_queries(client) -> None:
    status, _, content = client.request("POST", "/api/pictures", png(PICTURES["red.png"]))
    assert status == 200
    sent = json.loads(content)["picture"]
    for index in ("colours", "twin"):
        by_picture = client.ask(index=index, picture=sent)
        assert by_picture["read_as"] == "picture" and ids(by_picture)[0] == "red.png"
        similar = client.ask(index=index, like="sub/green.png")
        assert similar["read_as"] == "document" and ids(similar)[0] == "sub/green.png"
    status, headers, shown = client.request("GET", f"/api/pictures/{sent}")
    assert (status, headers["content-type"], PIL.Image.open(io.BytesIO(shown)).size) == (200, "image/png", (64, 64))
    assert client.post("/api/search", {"index": "colours", "picture": "0" * 32})[0] == 404
    assert client.post("/api/search", {"index": "colours", "like": "nowhere"})[0] == 404


def test_a_map_shows_where_a_term_is(client) -> None:
    question = {"index": "colours", "text": "red blue"}
    status, whole = client.post("/api/map", {"question": question, "doc_id": "half.png"})
    assert (status, whole["region"]) == (200, [0, 0, 1, 1])
    status, red = client.post("/api/map", {"question": question, "doc_id": "half.png", "term": "red"})
    assert red["grid"] == [[1, 0], [1, 0]]
    assert client.post("/api/map", {"question": {"index": "twin", "text": "red"}, "doc_id": "half.png"})[0] == 400
    assert client.post("/api/map", {"question": question, "doc_id": "nowhere"})[0] == 404


def test_what_indexes_and_routes_can_do_is_described(client) -> None:
    found = client.get("/api/indexes")
    lexical, dense = found["indexes"]
    assert found["examples"] == ["red", "blue"]
    assert (lexical["name"], lexical["terms"], lexical["maps"], lexical["sends"]) == ("colours", True, True, True)
    assert (dense["name"], dense["terms"], dense["maps"], dense["sends"]) == ("twin", False, False, True)
    assert [field["name"] for field in lexical["fields"]] == ["meta.place", "meta.year"]
    assert lexical["documents"] == 4 and not lexical["problem"]
    for index, prefix, terms in (("colours", "r", ["red"]), ("colours", "x", []), ("twin", "r", [])):
        assert client.get(f"/api/suggest?index={index}&prefix={prefix}") == terms
    assert set(client.get("/openapi.json")["paths"]) == {
        *("/api/indexes", "/api/search", "/api/products", "/api/map", "/api/suggest", "/api/embed"),
        *("/api/picture", "/api/pictures", "/api/pictures/{picture_id}"),
    }


def test_texts_of_documents_are_data_in_json(client) -> None:
    [hit] = [hit for hit in client.ask(text="blue")["hits"] if hit["doc_id"] == HOSTILE_ID]
    assert hit["text"] == CAPTION
    body = json.dumps({"index": "<b>x</b>"})
    status, headers, content = client.request("POST", "/api/search", body, content_type="application/json")
    assert status == 400 and headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff" and "default-src 'none'" in headers["content-security-policy"]


RED = {"index": "colours", "text": "red"}


@pytest.mark.parametrize(
    "body,status,reason",
    [
        ({"text": "red"}, 422, "index"),
        ({**RED, "index": "nowhere"}, 400, "unknown index 'nowhere'"),
        ({**RED, "text": "+nowhere"}, 400, "not in the vocabulary"),
        ({**RED, "text": "(red", "read_as": "terms"}, 400, "a bracket is not closed"),
        ({**RED, "where": "(("}, 400, "expression"),
        ({**RED, "where": "meta.nowhere:1"}, 400, "unknown metadata field"),
        ({**RED, "filters": [{"field": "meta.year"}]}, 400, "give a value"),
        ({**RED, "filters": [{"field": "meta.year", "value": "x"}]}, 400, "meta.year"),
        ({**RED, "weights": {"nowhere": 1}}, 400, "not in the vocabulary"),
        ({**RED, "weights": {"red": -1}}, 422, "weights"),
        ({**RED, "weights": {"red": 1 << 24}}, 422, "weights"),
        ({**RED, "text": "x" * 2001}, 422, "text"),
        ({**RED, "hits": 101}, 422, "hits"),
        ({**RED, "other": 1}, 422, "other"),
        ({"index": "colours", "picture": "../../etc/passwd"}, 422, "picture"),
        ({**RED, "text": "half \ud800"}, 422, "text"),
        ({**RED, "text": "((((" * 400, "read_as": "terms"}, 400, "expression"),
        ({**RED, "where": f"meta.place:[{'a' * 1001} TO b]"}, 400, "1,001 bytes, expected at most 1,000"),
        ({**RED, "filters": [{"field": "meta.year", "low": "9" * 400}]}, 400, "is no number"),
        ({**RED, "text": "+red^16777215"}, 400, "its score could reach"),
        ({**RED, "a\nb": 1}, 422, "body.a b: unknown key"),
        ({**RED, "weights": {"a\nb": "x"}}, 422, "body.weights.a b"),
    ],
)
def test_bad_questions_get_one_line(client, body, status, reason) -> None:
    found, answer = client.post("/api/search", body)
    assert found == status, answer
    assert list(answer) == ["error"] and reason in answer["error"] and "\n" not in answer["error"]


@pytest.mark.parametrize(
    "doc_id",
    ["../pictures/red.png", "/etc/passwd", "file:///etc/passwd", "red.png/../half.png", "red.png\0", "", "sub", "."],
)
def test_only_ids_of_the_corpus_have_pictures(client, folder, doc_id) -> None:
    def picture(doc_id):
        return client.request("GET", "/api/picture?" + urlencode({"index": "colours", "doc_id": doc_id}))

    status, _, content = picture(doc_id)
    assert status == 404 and b"no picture" in content
    assert picture(str(folder / "pictures" / "red.png"))[0] == 404
    assert picture("red.png")[0] == picture(HOSTILE_ID)[0] == 200


@pytest.mark.parametrize(
    "path", ["/../setup.cfg", "/%2e%2e/page.css", "/page/index.html", "/index.html", "/api/pictures/..%2f..", "/docs"]
)
def test_only_the_files_of_the_page_are_served(client, path) -> None:
    assert client.request("GET", path)[0] == 404


def test_a_picture_that_became_a_link_is_not_served(folder) -> None:
    index = index_pictures(folder / "linked", folder / "linked-index", pictures={"a.png": painted(8, 8)})
    outside = folder / "secret.png"
    painted(8, 8, red=(0, 0, 8, 8)).save(outside)
    with running(index) as client:
        (folder / "linked" / "a.png").unlink()
        (folder / "linked" / "a.png").symlink_to(outside)
        status, _, content = client.request("GET", "/api/picture?index=linked-index&doc_id=a.png")
        assert status == 404 and b"another file" in content


def send_picture(client, content: bytes) -> tuple[int, str]:
    status, _, answer = client.request("POST", "/api/pictures", content)
    return status, json.loads(answer).get("error", "")


@pytest.mark.parametrize(
    "content,reason",
    [
        (b"", "empty"),
        (b"no picture at all", "known format"),
        (png(painted(64, 64, red=(0, 0, 64, 64)))[:-30], "damaged"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "known format"),
        (save(PICTURES["red.png"], "BMP"), "expected JPEG, PNG, WebP, GIF, AVIF or HEIC"),
        (save(PICTURES["red.png"], "TIFF"), "expected JPEG"),
    ],
)
def test_files_that_are_no_pictures_are_refused(client, content, reason) -> None:
    status, answer = send_picture(client, content)
    assert status == 400 and reason in answer


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("twice", ['"text": "red",\n"text": "blue"', '"weights": {"red": 1,\n"red": 2}'])
def test_a_key_that_is_twice_in_a_request_is_refused(client, twice, encoding) -> None:
    body = f'{{"index": "colours", {twice}}}'.encode(encoding)
    found, _, content = client.request("POST", "/api/search", body, content_type="application/json")
    assert found == 400 and re.search(r"body line 2: key '(text|red)' is twice", json.loads(content)["error"])


def test_errors_of_the_protocol_are_one_line_too(client) -> None:
    status, _, content = client.request("POST", "/api/search", b"{", content_type="application/json")
    assert status == 422 and b"Traceback" not in content
    for method, path, status, told in (
        ("GET", "/api/nothing", 404, "Not Found"),
        ("GET", "/api/search", 405, "Method Not Allowed"),
        ("POST", "/api/search", 422, "expected JSON, with the header content-type: application/json"),
    ):
        found, _, content = client.request(method, path, b'{"text": "red"}' if method == "POST" else None)
        assert (found, json.loads(content)) == (status, {"error": told})


def test_what_is_kept_is_bounded_by_its_bytes_and_those_of_its_names(monkeypatch) -> None:
    monkeypatch.setattr(limits, "KEPT_BYTES", 10_000)
    kept = Recent(4)
    values = (("a" * 6000, 1, 1), ("b", {"x" * 3000: 5}, 2), ("c", ["y" * 3000], 2), ("d", "z" * 20_000, 0))
    for name, value, held in values:
        kept.put(name, value)
        assert len(kept._values) == held, name[:1]
    for number in range(6):
        kept.put(number, number)
    assert [kept.get(number) for number in range(6)] == [None, None, 2, 3, 4, 5]


def test_pictures_with_too_many_pixels_are_refused_before_they_are_decoded(client, monkeypatch) -> None:
    monkeypatch.setattr(limits, "UPLOAD_PIXELS", 1000)
    status, reason = send_picture(client, png(painted(65, 64)))
    assert status == 400 and "more than the limit of 1,000" in reason


def test_a_picture_of_many_scans_is_refused_and_a_slow_decoder_is_killed(client, monkeypatch) -> None:
    jpeg = save(painted(64, 48, green=(0, 0, 9, 9)), "JPEG", progressive=True)
    assert send_picture(client, jpeg)[0] == 200
    last = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    monkeypatch.setattr(limits, "UPLOAD_SCANS", 500 * 64 * 48)
    status, reason = send_picture(client, jpeg[:-2] + 500 * last + jpeg[-2:])
    assert status == 400 and "scans of 64x48 pixels, more than the limit of 1,536,000" in reason
    monkeypatch.setattr(limits, "DECODE_S", 0.001)
    assert send_picture(client, png(painted(9, 9)))[1].startswith("the picture: not decoded within 0 s")
    monkeypatch.setattr(limits, "DECODE_S", 900)
    monkeypatch.setattr(limits, "DECODE_BYTES", 1 << 20)
    assert "crashed or took too much memory" in send_picture(client, png(painted(4000, 4000)))[1]


def test_many_clients_get_the_answers_of_one(client) -> None:
    texts = ["red", "blue", "red green", "blue green", "green", "red blue", "+blue -red", "red red blue"]
    alone = {text: client.ask(text=text)["hits"] for text in texts}

    def ask(number: int) -> bool:
        text = texts[number % len(texts)]
        return client.ask(text=text)["hits"] == alone[text]

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(ask, range(96)))


def test_an_index_may_be_replaced_while_it_is_served(folder) -> None:
    pictures, index = folder / "changing", folder / "changing-index"
    index_pictures(pictures, index, pictures={"a.png": PICTURES["red.png"]})
    with running(index) as client:
        assert ids(client.ask(index="changing-index", text="red")) == ["a.png"]
        index_pictures(pictures, index, pictures={"b.png": PICTURES["red.png"]})
        wait_for(lambda: ids(client.ask(index="changing-index", text="red")) == ["a.png", "b.png"])
        assert client.request("GET", "/api/picture?index=changing-index&doc_id=b.png")[0] == 200
        (index / "index.json").write_text("{")  # what is damaged does not replace what answers
        problem = wait_for(lambda: client.get("/api/indexes")["indexes"][0]["problem"])
        assert "the older one answers" in problem
        assert ids(client.ask(index="changing-index", text="red")) == ["a.png", "b.png"]


def test_a_damaged_newer_index_waits_until_it_is_whole(folder) -> None:
    """Whatever is damaged, also what only the checksums find; the other index of the server answers all the time."""
    index = index_pictures(folder / "sound", folder / "sound-index", pictures={"a.png": PICTURES["red.png"]})
    newer = index_pictures(folder / "newer", folder / "newer-index", pictures={"b.png": PICTURES["red.png"]})
    other = index_pictures(folder / "other", folder / "other-index", pictures={"c.png": PICTURES["red.png"]})
    with running(index, other) as client:
        for file in (newer / "vocab.txt", next(newer.glob("*.fdt")), newer / "resident.bin", newer / "manifest.json"):
            whole = file.read_bytes()
            file.write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:]) if len(whole) > 30 else file.unlink()
            shutil.rmtree(folder / "before", ignore_errors=True)
            index.rename(folder / "before")
            shutil.copytree(newer, index)
            file.write_bytes(whole)
            problem = wait_for(lambda: client.get("/api/indexes")["indexes"][0]["problem"])
            assert "the older one answers" in problem and "lexvl-served" not in problem
            assert ids(client.ask(index="sound-index", text="red")) == ["a.png"]
            assert ids(client.ask(index="other-index", text="red")) == ["c.png"]
        shutil.copyfile(file, index / file.name)
        wait_for(lambda: ids(client.ask(index="sound-index", text="red")) == ["b.png"])
        wait_for(lambda: not client.get("/api/indexes")["indexes"][0]["problem"])
        client.service.shelf._open["sound-index"].problem = ArtefactError("damaged")
        assert [entry["problem"] for entry in client.get("/api/indexes")["indexes"]] == ["damaged", ""]
        assert ids(client.ask(index="other-index", text="red")) == ["c.png"]


def test_an_index_that_is_damaged_at_the_start_stops_no_other(folder, caplog) -> None:
    sound = index_pictures(folder / "whole", folder / "whole-index", pictures={"a.png": PICTURES["red.png"]})
    broken = index_pictures(folder / "broken", folder / "broken-index", pictures={"b.png": PICTURES["red.png"]})
    whole = (broken / "index.json").read_bytes()
    (broken / "index.json").write_text("{")
    with running(broken, sound) as client:
        assert str(broken / "index.json") in caplog.text
        assert ids(client.ask(index="whole-index", text="red")) == ["a.png"]
        status, answer = client.post("/api/search", {"index": "broken-index", "text": "red"})
        assert status == 503 and answer["error"].startswith("index 'broken-index' cannot be opened: index.json")
        assert client.request("GET", "/readyz")[0] == 503
        described = client.get("/api/indexes")["indexes"]
        assert [(one["name"], one["problem"]) for one in described] == [
            ("broken-index", answer["error"]),
            ("whole-index", ""),
        ]
        assert list(try_query(client.service, 2)) == ["query", "whole-index"]
        with pytest.raises(ArtefactError, match="'broken-index' cannot be opened"):
            try_query(client.service)
        (broken / "manifest.json").touch()  # another state, as bad: another try
        wait_for(lambda: client.get("/api/indexes") and "'broken-index' cannot be opened" in caplog.text)
        (broken / "index.json").write_bytes(whole)
        wait_for(lambda: client.post("/api/search", {"index": "broken-index", "text": "red"})[0] == 200)
        assert ids(client.ask(index="broken-index", text="red")) == ["b.png"]
        wait_for(lambda: client.request("GET", "/readyz")[0] == 200)
    for file in (broken, sound):
        (file / "index.json").write_text("{")
    caplog.clear()
    with pytest.raises(ArtefactError, match="broken-index/index.json"), running(broken, sound):
        pass
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [str(sound / "index.json")]


@pytest.mark.parametrize("partitions", [False, True])
def test_files_that_are_copied_over_a_served_index_under_load(folder, monkeypatch, partitions) -> None:
    """As `cp -r new/. served/` does, which cuts each file first: a process that has it mapped would end."""
    monkeypatch.setattr("lexvl_anserini.engines.resident.layout.READ_BYTES", 0)
    index = index_pictures(folder / "below", folder / "below-index", pictures={"a.png": PICTURES["red.png"]})
    over = index_pictures(folder / "over", folder / "over-index", pictures={"b.png": PICTURES["red.png"]})
    if partitions:
        for one in (index, over):
            build_index(one.with_name(f"{one.name}-shards"), one, engine="partitions", overwrite=True)
    os.mkfifo(index / "pipe")  # what a user keeps in the folder is no part of the index
    (index / "loop").symlink_to(index)
    (index / "nowhere").symlink_to("nowhere-else")
    copied = Event()

    def ask() -> set[str]:
        found = set()
        while not copied.is_set():
            for question in ({"text": "red"}, {"text": "+red -blue"}):
                found.update(ids(client.ask(index="below-index", **question)))
        return found

    with running(index) as client, ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(ask) for _ in range(3)]
        try:
            for file in sorted(path for path in over.rglob("*") if path.is_file()):
                with (index / file.relative_to(over)).open("wb") as out:
                    time.sleep(0.05)
                    out.write(file.read_bytes())
            wait_for(lambda: ids(client.ask(index="below-index", text="red")) == ["b.png"])
        finally:
            copied.set()
        assert set().union(*(answers.result() for answers in asking)) <= {"a.png", "b.png"}


def test_an_index_that_is_replaced_while_it_is_opened_is_of_one_state(folder, monkeypatch) -> None:
    """Its manifest, its corpus and its postings are of the newer index."""
    index = index_pictures(folder / "first", folder / "twice", pictures={"a.png": PICTURES["red.png"]})
    other = index_pictures(folder / "second", folder / "twice-other", pictures={"b.png": PICTURES["red.png"]})
    read = indexes.documents.read_corpus

    def replaced(dataset):
        if other.exists():
            index.rename(folder / "twice-older")
            other.rename(index)
        return read(dataset)

    monkeypatch.setattr(indexes.documents, "read_corpus", replaced)
    with running(index) as client:
        [hit] = client.ask(index="twice", text="red")["hits"]
        assert (hit["doc_id"], hit["picture"]) == ("b.png", True)


class ToyIndex:
    """A live index of a shelf, without files."""

    def __init__(self, state) -> None:
        self.served, self.state, self.problem = SimpleNamespace(name="toy", path="toy"), state, None
        self.manifest = SimpleNamespace(counts=SimpleNamespace(documents=1))
        self.users, self.retired, self.closed = 0, False, 0

    def close(self) -> None:
        self.closed += 1


class AtOnce:
    """In place of a thread: runs before the next line."""

    def __init__(self, target, args, **_) -> None:
        self.start = partial(target, *args)


@pytest.fixture
def toys(monkeypatch):
    """The indexes that a shelf opened; the first is of state 0, others are of state 1, which the folder has."""
    opened = []
    monkeypatch.setattr(indexes, "Thread", AtOnce)
    monkeypatch.setattr(indexes, "read_folder_state", lambda path: 1)
    monkeypatch.setattr(indexes, "open_live", lambda *_: opened.append(ToyIndex(min(len(opened), 1))) or opened[-1])
    return opened


def test_two_threads_that_see_a_change_open_the_index_once(toys, monkeypatch) -> None:
    shelf = indexes.Shelf([SimpleNamespace(name="toy", path="toy")])

    def while_another_opens_it(path) -> int:
        monkeypatch.setattr(indexes, "read_folder_state", lambda path: 1)
        shelf._look("toy")
        return 1

    monkeypatch.setattr(indexes, "read_folder_state", while_another_opens_it)
    with shelf.borrow("toy") as index:
        assert index is toys[1]
    shelf.close()
    assert [toy.closed for toy in toys] == [1, 1]


def test_an_index_that_is_opened_while_the_shelf_closes_is_closed_too(toys, monkeypatch) -> None:
    shelf = indexes.Shelf([SimpleNamespace(name="toy", path="toy")])
    open_toy = indexes.open_live
    monkeypatch.setattr(indexes, "open_live", lambda *_: shelf.close() or open_toy())
    shelf._look("toy")
    assert [toy.closed for toy in toys] == [1, 1]


def test_an_index_of_texts_for_bm25(folder) -> None:
    (folder / "texts").mkdir()
    (folder / "texts" / "boat.txt").write_text("a red boat " + "on the wide sea " * 40)
    (folder / "texts" / "dogs.txt").write_text("two dogs")
    write_impacts(load_dataset(f"folder:{folder / 'texts'}"), load_encoder("bm25"), folder / "texts-shards")
    build_index(folder / "texts-shards", folder / "texts-index")
    with running(folder / "texts-index") as client:
        answer = client.ask(index="texts-index", text="the boat", where="dogs")
        [hit] = answer["hits"]
        assert answer["greatest"] is None
        assert (hit["doc_id"], hit["picture"], answer["chips"], answer["ignored"]) == ("boat", False, [], ["filters"])
        assert hit["text"].startswith("a red boat on") and hit["text"].endswith(" …") and len(hit["text"]) <= 402
        assert client.post("/api/search", {"index": "texts-index", "text": "+boat"})[1]["hits"][0]["doc_id"] == "boat"
        assert client.post("/api/search", {"index": "texts-index", "text": "boat", "read_as": "terms"})[0] == 400
        sent = json.loads(client.request("POST", "/api/pictures", png(PICTURES["red.png"]))[2])["picture"]
        status, refused = client.post("/api/search", {"index": "texts-index", "picture": sent})
        assert status == 400 and "reads no pictures" in refused["error"]


def test_a_corpus_that_is_gone_leaves_ids(folder) -> None:
    index = index_pictures(folder / "gone", folder / "gone-index", pictures={"a.png": PICTURES["red.png"]})
    (folder / "gone").rename(folder / "moved")
    with running(index) as client:
        [hit] = client.ask(index="gone-index", text="red")["hits"]
        assert (hit["doc_id"], hit["picture"]) == ("a.png", False)
        [described] = client.get("/api/indexes")["indexes"]
        assert "cannot be read" in described["problem"] and described["corpus"] == "folder:gone"
        assert str(folder.parent) not in str(described)


@pytest.mark.parametrize(
    "text,shown",
    [
        ("/srv/my photos/a b/x.png: cut/off", "x.png: cut/off"),
        ("folder:/srv/me/photos", "folder:photos"),
        ("'/srv/i' and /opt/b.json:\nno", "'i' and b.json: no"),
        ("file:///etc/passwd", "passwd"),
        ("/var/storage/s3/me:secret@b/x", "x"),
        ("and/or 3/4 https://me:secret@a.example/b/c", "and/or 3/4 https://***@a.example/b/c"),
    ],
)
def test_places_and_passwords_of_this_machine_do_not_leave_it(text, shown) -> None:
    assert hide_places(text) == shown


def test_texts_and_pictures_are_embedded_as_a_search_encodes_them(client) -> None:
    sent = json.loads(client.request("POST", "/api/pictures", png(PICTURES["half.png"]))[2])["picture"]
    question = {"texts": ["red blue blue", "", "red"], "pictures": [sent, sent]}
    status, found = client.post("/api/embed", {"index": "colours", **question})
    assert (status, found["kind"]) == (200, "impact")
    assert found["texts"] == [{"blue": 255, "red": 128}, {}, {"red": 255}]
    assert found["pictures"] == [{"blue": 255, "red": 255}] * 2
    for vector, text in zip(found["texts"], question["texts"], strict=True):
        assert vector == {chip["term"]: chip["weight"] for chip in client.ask(text=text or "x")["chips"]}
    status, dense = client.post("/api/embed", {"index": "twin", **question})
    assert (status, dense["kind"]) == (200, "dense")
    assert dense["texts"] == [[1, 0, 2], [0, 0, 0], [1, 0, 0]]
    assert [len(vector) for vector in dense["pictures"]] == [3, 3]
    assert client.post("/api/embed", {"index": "colours"})[1]["texts"] == []


def test_a_batch_is_bounded_and_may_be_larger_than_other_requests(client) -> None:
    long = ["red " * 400] * limits.MOST_EMBEDDED
    assert len(json.dumps(long)) > limits.MOST_JSON
    status, found = client.post("/api/embed", {"index": "colours", "texts": long})
    assert status == 200 and found["texts"] == [{"red": 255}] * len(long)
    for wrong, status, reason in (
        ({"texts": ["red"] * (limits.MOST_EMBEDDED + 1)}, 422, "body.texts"),
        ({"pictures": ["0" * 32]}, 404, "not on the server any more"),
        ({"texts": [5]}, 422, "body.texts.0: 5, expected a text"),
        ({"index": "nowhere"}, 400, "unknown index"),
    ):
        found = client.post("/api/embed", {"index": "colours", **wrong})
        assert found[0] == status and reason in found[1]["error"], found
    assert client.request("POST", "/api/embed", b" " * (limits.MOST_TEXTS + 1))[0] == 413


IMPACTS = {"boat": 7, "red": 2, "sea": 5}


@pytest.mark.parametrize(
    "expression,expected",
    [
        ("boat", [("boat", 7)]),
        ("+boat -night red^3", [("boat", 7), ("red", 6)]),
        ("+boat (night AND red)", [("boat", 7)]),  # the optional bracket does not match
        ("boat OR (sea NOT red)", [("boat", 7)]),
        ("(boat red)^2 sea", [("boat", 14), ("sea", 5), ("red", 4)]),
        ("boat boat^2", [("boat", 21)]),
        ("boat meta.year:2020", [("boat", 7)]),
    ],
)
def test_products_of_expressions(expression: str, expected: list[tuple[str, float]]) -> None:
    assert [(one.term, one.product) for one in find_shared_terms(parse(expression), IMPACTS)] == expected


def test_equal_products_are_in_the_order_of_terms_and_an_absent_term_has_none() -> None:
    found = find_shared_terms(Impacts({"sea": 2, "boat": 3, "red": 5, "moon": 9}), {**IMPACTS, "boat": 4, "red": 2})
    products = [(one.term, one.weight, one.impact, one.product) for one in found]
    assert products == [("boat", 3, 4, 12), ("red", 5, 2, 10), ("sea", 2, 5, 10)]


TERMS = st.sampled_from(["a", "b", "c", "日本", "nowhere"])
LEAVES = st.builds(Term, TERMS, st.integers(1, 9))
LEAVES |= st.builds(Impacts, st.dictionaries(TERMS, st.integers(1, 9), max_size=4))


def above(below: st.SearchStrategy) -> st.SearchStrategy:
    some = st.lists(below, max_size=3).map(tuple)
    one = st.builds(Not, below) | st.builds(Unscored, below) | st.builds(Boost, below, st.integers(0, 3))
    return st.builds(All, some, some) | st.builds(AnyOf, some) | one


TREES = st.recursive(LEAVES, above, max_leaves=10)


@given(clause=TREES, impacts=st.dictionaries(TERMS, st.integers(1, 9)))
def test_products_sum_to_the_score_of_every_tree(clause, impacts) -> None:
    score = Oracle([document := Doc("d", impacts)]).score(clause, document)
    assume(score is not None)
    assert sum(one.product for one in find_shared_terms(clause, impacts)) == score


@given(clause=TREES, impacts=st.dictionaries(TERMS, st.integers(1, 9)), weight=st.integers(1, 9))
def test_a_tree_with_another_weight_has_that_products(clause, impacts, weight) -> None:
    other = reweigh(clause, {"a": weight})
    oracle = Oracle([document := Doc("d", impacts)])
    score = oracle.score(other, document)
    assume(score is not None and "a" in impacts)
    assert sum(one.product for one in find_shared_terms(other, impacts)) == score


def test_a_weight_of_zero_leaves_a_term_out_of_a_vector_and_keeps_its_condition_in_an_expression() -> None:
    assert change_weights({"boat": 3, "sea": 2}, {"boat": 0, "moon": 4}) == {"sea": 2, "moon": 4}
    expected = All((Unscored(Term("boat")), Not(Term("night"))), (Term("red", 5),))
    assert reweigh(parse("+boat -night red^3"), {"boat": 0, "red": 5}) == expected
    assert reweigh(Impacts({"boat": 3}), {"boat": 9}) == Impacts({"boat": 9})
    assert reweigh(Equals("meta.year", 1), {"boat": 1}) == Equals("meta.year", 1)
    with pytest.raises(UsageError, match="below 0"):
        change_weights({}, {"boat": -1})
