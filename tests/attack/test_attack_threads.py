"""Threads over everything that a server shares, compared with one thread; web servers; long texts."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from rounds import Rounds
from serving import KINDS, Question, Service, make_service, questions, wrong_answers
from tiny_encoders import BERT

from lexvl_anserini.encoders.loading import load_encoder
from lexvl_anserini.encoders.parts import clip_bpe
from lexvl_anserini.encoders.parts.tokens import TextReader
from tests.encoders.test_long_texts import UNITS, clip_tokens, kinds
from tests.searching.test_threads import java_threads, served

pytestmark = [pytest.mark.heavy, pytest.mark.attack]

THREADS = 8


@pytest.fixture(scope="module", params=["vdr", "splade"])
def service(request: pytest.FixtureRequest, golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Service:
    model = load_encoder(request.param, str(golden / BERT), device="cpu", topk=32)
    return make_service(model, tmp_path_factory.mktemp(request.param))


def test_ten_thousand_calls(service: Service) -> None:
    """Not by rounds: the number of calls is the promise. Encoding, searching and explaining with one open index."""
    if service.model.name != "vdr":
        pytest.skip("one model for the full size")
    different = questions(500, random.Random(1), ("encode", "search", "explained"))
    expected = [service.answer(question) for question in different]
    problems = wrong_answers(service.answer, different * 20, expected * 20, THREADS)
    assert Counter(problems) == {}


def test_threads_over_everything(rounds: Rounds, service: Service) -> None:
    for one in rounds:
        kinds_now = tuple(one.random.sample(KINDS, one.random.randint(1, len(KINDS))))
        asked = questions(one.random.randint(20, 60), one.random, kinds_now) * 4
        one.random.shuffle(asked)
        expected = [service.answer(question) for question in asked]
        assert Counter(wrong_answers(service.answer, asked, expected, one.random.choice([2, 8, 16]))) == {}
        rounds.count("calls by threads", len(asked))


def test_a_web_server(rounds: Rounds, service: Service) -> None:
    """Threads that live for one request, and bare threads between them that end without a word."""
    before = java_threads()
    for one in rounds:
        asked = questions(60, one.random, ("encode", "search", "search_index", "explain", "explained", "tree"))
        expected = [repr(service.answer(question)) for question in asked]
        bare = [Thread(target=service.answer, args=(question,)) for question in asked[:20]]
        with served(service) as address, ThreadPoolExecutor(THREADS) as pool:
            for thread in bare:
                thread.start()
            answers = list(pool.map(lambda question: get(address, question), asked))
        for thread in bare:
            thread.join()
        assert answers == expected
        rounds.count("web requests", len(asked))
    assert java_threads() <= before + 1


def get(address: str, question: Question) -> str:
    with urlopen(f"{address}/{question.kind}?{quote(question.text)}") as answer:
        return str(answer.read().decode())


def test_long_texts(rounds: Rounds) -> None:
    """Texts of up to some hundred thousand characters, against the tokens of the whole text."""
    for one in rounds:
        text = long_text(one.random)
        length = one.random.randint(4, 64)
        kind = one.random.choice([*kinds(), "captions"])
        if kind == "captions":
            bpe = clip_tokens()
            ids = bpe.model.encode(clip_bpe.clean(text), add_special_tokens=False).ids[: length - 2]
            assert bpe([text], length)["input_ids"] == [[bpe.ids[clip_bpe.START], *ids, bpe.ids[clip_bpe.END]]]
        else:
            tokenizer, whole = kinds()[kind]
            specials = one.random.random() < 0.5
            expected = whole(text, truncation=True, max_length=length, add_special_tokens=specials)["input_ids"]
            assert TextReader(tokenizer, length, specials=specials)([text]) == [expected]
        rounds.count("long texts")


def long_text(draws: random.Random) -> str:
    runs = [(draws.choice(UNITS), draws.choice([1, 2, 3, 40, 1200, 5000])) for _ in range(draws.randint(1, 12))]
    return "".join(unit * times for unit, times in runs) + "".join(unit for unit, _ in runs) * draws.randint(1, 400)
