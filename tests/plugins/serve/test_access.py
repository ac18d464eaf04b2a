"""Who may ask a server: keys, what a log line has, and what is refused where too many ask."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import time

import pytest

from lexvl_anserini.ground.errors import DataError, UsageError
from lexvl_plugins.serve import limits
from lexvl_plugins.serve.serve import command
from lexvl_plugins.serve.server import KEY_NAME, ApiKeys, check_address
from tests.invoking import invoked
from tests.plugins.serve.served_colours import index_pictures, load, running

FIRST, SECOND = "first-0123456789", "second-0123456789"
QUESTION = json.dumps({"index": "colours", "text": "red"})


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lexvl_anserini.searching.search.load_encoder_from", load)
        index = index_pictures(folder / "pictures", folder / "colours")
        with running(index, keys=ApiKeys([FIRST, SECOND]), log_requests=True) as client:
            yield client


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


RIGHT = [f"Bearer {FIRST}", f"bearer  {SECOND}", basic("anyone", SECOND), basic("", FIRST)]
WRONG = [
    "",
    FIRST,
    f"Bearer {FIRST}x",
    f"Bearer {FIRST[:-1]}",
    "Bearer ",
    f"Digest {FIRST}",
    basic(FIRST, "x"),
    "Basic é",
]


@pytest.mark.parametrize("header,status", [*((right, 200) for right in RIGHT), *((wrong, 401) for wrong in WRONG)])
@pytest.mark.parametrize("path", ["/", "/api/indexes", "/openapi.json", "/api/suggest?index=colours&prefix=r"])
def test_every_path_needs_a_key(client, path, header, status) -> None:
    found, headers, content = client.request("GET", path, Authorization=header)
    assert found == status
    if status == 401:
        assert set(json.loads(content)) == {"error"}
        assert headers["www-authenticate"].startswith("Basic ")  # the last of them


def test_browsers_and_programs_have_a_challenge_each(client) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=900)
    connection.request("GET", "/")
    challenges = connection.getresponse().headers.get_all("www-authenticate")
    connection.close()
    assert [challenge.partition(" ")[0] for challenge in challenges] == ["Bearer", "Basic"]


def test_other_hosts_and_sites_are_refused_with_a_key_too(client) -> None:
    assert client.request("GET", "/", Authorization=f"Bearer {FIRST}", Host="evil.example")[0] == 421
    assert client.request("GET", "/", Authorization=f"Bearer {FIRST}", Origin="http://evil.example")[0] == 403


def test_keys_of_a_file(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the lab\n\n{FIRST}\n  {SECOND}  \n")
    keys = ApiKeys.read(file)
    names = [keys.find_name(f"Bearer {key}".encode()) for key in (FIRST, SECOND, "# of the lab")]
    assert len(set(names)) == 3 and len(names[0]) == KEY_NAME and names[2] is None
    assert FIRST.encode() not in b"".join(keys.digests)


@pytest.mark.parametrize(
    "content,reason",
    [
        ("", "no key; expected one a line"),
        ("# nothing\n", "no key"),
        (f"{FIRST}\nshort\n", r"line 2: 5 characters, expected at least 16"),
        ("a key of three words and more", "without spaces"),
        ("0123456789abcdeé", "of ASCII"),
    ],
)
def test_files_without_good_keys_are_refused(tmp_path, content, reason) -> None:
    file = tmp_path / "keys"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=reason):
        ApiKeys.read(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        ApiKeys.read(file)


def test_keys_do_not_cross_a_network_in_plain_text_unless_the_user_says_so(tmp_path, caplog) -> None:
    file = tmp_path / "keys"
    file.write_text(FIRST)
    for host in ("0.0.0.0", "192.0.2.1", "example.org", "::"):
        with pytest.raises(UsageError, match=r"plain HTTP.*--insecure"):
            invoked(command, "--index", tmp_path, "--host", host, "--keys", file)
        check_address(host, ApiKeys.read(file), insecure=True)
    for host in ("127.0.0.1", "::1", "localhost"):
        check_address(host, ApiKeys.read(file), insecure=False)
        check_address(host, None, insecure=False)
    assert caplog.text == ""
    check_address("0.0.0.0", None, insecure=False)
    assert "there is no password" in caplog.text


def test_a_line_of_json_for_each_request_without_what_users_wrote(client, caplog) -> None:
    caplog.set_level(logging.INFO, "lexvl_plugins.serve.server")
    key = {"Authorization": f"Bearer {FIRST}"}
    client.request("POST", "/api/search", QUESTION, content_type="application/json", **key)
    client.request("GET", "/api/suggest?index=colours&prefix=secret", **key)
    client.request("GET", "/api/pictures/secret", **key)
    client.request("SECRET", "/secret?secret=secret", **key)
    client.request("GET", "/", Authorization="Bearer secret", Host="localhost")
    deadline = time.monotonic() + 900  # a line is written after its answer
    while (
        len(lines := [json.loads(one.getMessage()) for one in caplog.records if one.name.endswith("serve.server")]) < 5
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/api/search", 200),
        ("GET", "/api/suggest", 200),
        ("GET", "/api/pictures/{picture_id}", 404),
        (None, None, 404),
        ("GET", None, 401),
    ]
    assert list(lines[0]) == ["time", "method", "path", "status", "ms", "received", "sent", "key"]
    assert lines[0]["received"] == len(QUESTION) and lines[0]["sent"] > 100 and lines[0]["ms"] > 0
    assert lines[0]["key"] == lines[1]["key"] != lines[4]["key"] is None
    assert (
        "secret" not in caplog.text.lower() and "red" not in {*map(str, lines[0].values())} and FIRST not in caplog.text
    )


def test_beyond_so_many_that_wait_requests_are_shed(client, monkeypatch) -> None:
    key = {"Authorization": f"Bearer {FIRST}", "content_type": "application/json"}
    monkeypatch.setattr(limits, "WAITING", 0)
    for path in ("/api/search", "/api/embed"):
        status, headers, content = client.request("POST", path, '{"index": "colours"}', **key)
        assert (status, headers["retry-after"]) == (503, "5")
        assert json.loads(content)["error"] == "too many requests at once; try again in 5 s"
    monkeypatch.setattr(limits, "WAITING", 1)
    assert client.request("POST", "/api/search", QUESTION, **key)[0] == 200
    monkeypatch.setattr(limits, "ANSWER_S", 0.0)
    status, headers, _ = client.request("POST", "/api/search", QUESTION, **key)
    assert (status, headers["retry-after"]) == (503, "5")
