"""The tools of agents, called by the SDK's own client: in memory, over HTTP, and over standard input and output."""

import base64
import io
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import PIL.Image
import pytest

from tests.plugins.serve.served_colours import CAPTION, index_texts, running, serving

pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol")

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from lexvl_anserini.ground.errors import ArtefactError, DataError, UsageError
from lexvl_plugins.serve import agents, limits
from lexvl_plugins.serve.mcp import command
from lexvl_plugins.serve.server import ApiKeys
from tests.invoking import invoked

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> Iterator[Any]:
    """A lexical index and its dense twin, served over HTTP."""
    options = {"dense": True, "examples": ("red",), "make": agents.build_tools_app}
    with serving(tmp_path_factory.mktemp("agents"), **options) as client:
        yield client


def talk(target: Any, use: Callable[[Client], Awaitable[Any]], mode: str = "auto") -> Any:
    """What a conversation with a server returns."""

    async def connected() -> Any:
        async with Client(target, mode=mode) as client:
            return await use(client)

    return anyio.run(connected)


def call(target: Any, tool: str, **arguments: Any) -> CallToolResult:
    """The result of one call; the client checks it against the schema that the tool lists."""

    async def calling(client: Client) -> CallToolResult:
        await client.list_tools()
        return await client.call_tool(tool, arguments)

    return talk(target, calling)


@pytest.fixture
def server(colours) -> Any:
    return agents.build_tools(colours.service)


def answer(target: Any, tool: str, **arguments: Any) -> Any:
    """The structured answer; the text of the same answer is equal."""
    result = call(target, tool, **arguments)
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def opened(result: CallToolResult) -> list[Any]:
    """The pictures of a result."""
    parts = [part for part in result.content if part.type == "image"]
    return [PIL.Image.open(io.BytesIO(base64.b64decode(part.data))) for part in parts]


def test_the_tools_are_listed_with_typed_arguments_and_answers(server) -> None:
    async def listing(client: Client) -> Any:
        return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in talk(server, listing)}
    assert list(tools) == ["indexes", "search", "explain", "picture", "map"]
    for tool in tools.values():
        assert tool.input_schema["type"] == tool.output_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert tool.description and tool.annotations.read_only_hint is True
    assert tools["explain"].input_schema["required"] == ["query", "doc_ids"]
    assert tools["search"].input_schema["properties"]["hits"]["maximum"] == limits.MOST_HITS


def test_a_search_explained(server) -> None:
    found = answer(server, "search", query="a red and blue picture")
    assert (found["index"], found["read_as"]) == ("colours", "text")
    ids = [hit["doc_id"] for hit in found["hits"]]
    assert ids[0] == "half.png"
    explained = answer(server, "explain", query="a red and blue picture", doc_ids=ids)["documents"]
    for hit, document in zip(found["hits"], explained, strict=True):
        assert sum(product["product"] for product in document["products"]) == document["score"] == hit["score"]
    assert [hit["text"] for hit in answer(server, "search", query="+blue -red")["hits"]] == [CAPTION]
    assert answer(server, "search", index="twin", query="red")["index"] == "twin"
    assert answer(server, "search", like="red.png", hits=1)["hits"][0]["doc_id"] == "red.png"
    names = [index["name"] for index in answer(server, "indexes")["indexes"]]
    assert names == ["colours", "twin"]


def test_products_that_are_not_shown_are_in_the_rest(server, monkeypatch) -> None:
    monkeypatch.setattr(agents, "TERMS", 1)
    [document] = answer(server, "explain", query="red blue", doc_ids=["half.png"])["documents"]
    [product] = document["products"]
    assert document["rest"] == product["product"] == document["score"] / 2
    assert len(answer(server, "search", query="red blue")["chips"]) == 1


def test_pictures_are_parts_of_answers(server) -> None:
    [shown] = opened(call(server, "picture", doc_id="half.png"))
    assert shown.size == (64, 64) and shown.convert("RGB").getpixel((5, 5)) == (255, 0, 0)
    assert answer(server, "picture", doc_id="half.png", side="large")["width"] == 64
    assert len(opened(call(server, "search", query="red blue", pictures=2))) == 2
    assert opened(call(server, "search", query="red")) == []


def sent_picture(colour: tuple[int, int, int], size: tuple[int, int] = (64, 64)) -> str:
    """A PNG of one colour in base64."""
    out = io.BytesIO()
    PIL.Image.new("RGB", size, colour).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def test_a_picture_as_query(server, colours, monkeypatch) -> None:
    red = sent_picture((255, 0, 0))
    found = answer(server, "search", image=red, hits=1)
    assert (found["read_as"], found["hits"][0]["doc_id"], found["chips"][0]["term"]) == ("picture", "red.png", "red")
    assert answer(server, "search", image=f"data:image/png;base64,{red}", hits=1)["hits"] == found["hits"]
    assert answer(server, "search", index="twin", image=red, hits=1)["hits"][0]["doc_id"] == "red.png"
    large = sent_picture((255, 0, 0), (500, 400))
    assert len(large) < limits.MOST_JSON
    noise = base64.b64encode(base64.b64decode(red) + bytes(limits.MOST_JSON)).decode()  # PNG ends before

    async def searching(client: Client) -> CallToolResult:
        return await client.call_tool("search", {"image": noise, "hits": 1})

    assert talk(colours.url + "mcp", searching).structured_content["hits"] == found["hits"]
    monkeypatch.setattr(limits, "UPLOAD_PIXELS", 10_000)
    assert "pixels" in call(server, "search", image=large).content[0].text


@pytest.mark.parametrize("arguments", [{"term": "red"}, {"query": "red"}])
def test_a_map_shows_where_a_term_is(server, arguments) -> None:
    found = answer(server, "map", doc_id="half.png", **arguments)
    assert found == {"grid": [[1, 0], [1, 0]], "region": [0, 0, 1, 1], "boxes": [], "terms": ["red"]}
    [drawn] = opened(call(server, "map", doc_id="half.png", **arguments))
    assert drawn.convert("RGB").getpixel((2, 32)) == (255, 0, 0)
    assert drawn.convert("RGB").getpixel((62, 32)) != (0, 0, 255)
    nowhere = call(server, "map", doc_id="red.png", term="blue")
    assert nowhere.structured_content["terms"] == [] and opened(nowhere) == []


WRONG = {
    "a type": ("search", {"hits": "many"}, 'hits: "many", expected an integer'),
    "another type": ("search", {"query": 5}, "query: 5, expected a text"),
    "no list": ("explain", {"query": "red", "doc_ids": "half.png"}, 'doc_ids: "half.png", expected a list'),
    "a key": ("search", {"qury": "red"}, "qury: unknown key; did you mean 'query'?"),
    "a missing key": ("picture", {}, "doc_id: is missing"),
    "too many": ("search", {"hits": 101}, "hits: 101, expected"),
    "a tool": ("serch", {}, "unknown tool 'serch'; did you mean 'search'?"),
    "an index": ("search", {"index": "colour"}, "unknown index 'colour'; did you mean 'colours'?"),
    "a document": ("picture", {"doc_id": "../half.png"}, "no picture of a document '../half.png'"),
    "a term": ("map", {"doc_id": "half.png", "term": 'r"ed'}, "is not in the vocabulary"),
    "term and query": ("map", {"doc_id": "half.png"}, "give a term, or a query"),
    "query and document": ("search", {"query": "red", "like": "red.png"}, "no other of them"),
    "query and image": ("search", {"query": "red", "image": "AAAA"}, "no other of them"),
    "no base64": ("search", {"image": "a picture!"}, "image: no base64"),
    "no picture": ("search", {"image": "AAAA"}, "image: the picture"),
    "an empty image": ("search", {"image": ""}, "image: the picture"),
    "a large image": ("search", {"image": "A" * (limits.MOST_BASE64 + 1)}, "image: "),
    "a dense index": ("explain", {"index": "twin", "query": "red", "doc_ids": ["a"]}, "impact"),
    "half a character": ("search", {"query": "\ud800"}, "query: "),
}


@pytest.mark.parametrize("tool,arguments,reason", WRONG.values(), ids=WRONG)
def test_a_wrong_call_gets_one_line(server, tool, arguments, reason) -> None:
    result = call(server, tool, **arguments)
    assert result.is_error and result.structured_content is None
    [part] = result.content
    assert reason in part.text and "\n" not in part.text


def test_a_defect_is_logged_and_its_text_stays_on_the_server(server, colours, monkeypatch, caplog) -> None:
    def fails(self: Any) -> None:
        raise ValueError("a secret place")

    monkeypatch.setattr(type(colours.service), "describe", fails)
    result = call(server, "indexes")
    assert result.is_error and result.content[0].text == "an error of the server; its log says more"
    assert "tool indexes: ValueError at " in caplog.text and "a secret place" not in caplog.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_client_over_http(colours, mode) -> None:
    async def searching(client: Client) -> CallToolResult:
        return await client.call_tool("search", {"query": "red", "hits": 1, "pictures": 1})

    result = talk(colours.url + "mcp", searching, mode)
    assert result.structured_content["hits"][0]["score"] > 0 and len(opened(result)) == 1


def test_http_is_behind_the_guards_of_the_page(colours) -> None:
    accepts = {"accept": "application/json, text/event-stream", "content_type": "application/json"}
    status, _, content = colours.request("POST", "/mcp", b" " * (limits.MOST_CALL + 1), **accepts)
    assert status == 413 and "error" in json.loads(content)
    assert colours.request("POST", "/mcp", "{}", Host="evil.example", **accepts)[0] == 421
    assert colours.request("POST", "/mcp", "{}", Origin="http://evil.example", **accepts)[0] == 403
    assert colours.request("GET", "/mcp", accept="text/event-stream")[0] == 405
    assert colours.request("GET", "/openapi.json")[0] == 404
    status, _, content = colours.request("POST", "/mcp", "not JSON", **accepts)
    assert status == 400 and json.loads(content)["error"]["code"] == -32700
    status, _, content = colours.request("POST", "/mcp", '{"params": {"name": "a", "name": "b"}}', **accepts)
    assert status == 400 and b"key 'name' is twice" in content


def test_calls_that_would_wait_too_long_are_refused(server, monkeypatch) -> None:
    monkeypatch.setattr(limits, "WAITING", 0)
    assert "try again" in call(server, "indexes").content[0].text


def test_keys_guard_the_tools(colours) -> None:
    with colours.service.shelf.borrow("colours") as index:
        path = index.served.path
    with running(path, make=agents.build_tools_app, keys=ApiKeys([KEY])) as client:
        assert client.request("POST", "/mcp", "{}")[0] == 401
        assert client.request("POST", "/mcp", "{}", Authorization=f"Bearer {KEY}")[0] != 401


def test_what_the_command_refuses(tmp_path) -> None:
    with pytest.raises(ArtefactError, match="no such index"):
        invoked(command, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="are for --http"):
        invoked(command, tmp_path, "--port", "1")
    with pytest.raises(DataError, match="cannot be read"):
        invoked(command, tmp_path, "--http", "--keys", tmp_path / "nowhere")


@pytest.mark.heavy
def test_standard_output_has_the_protocol_alone(tmp_path) -> None:
    """An index of texts, because another process has no toy encoders."""
    environ = index_texts(tmp_path)
    serve = ("-m", "lexvl_plugins.serve.mcp", "index")
    where = StdioServerParameters(command=sys.executable, args=list(serve), cwd=tmp_path, env=environ)
    assert answer(where, "search", query="boat")["hits"][0]["doc_id"] == "boat"
    line = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": {"hits": "x"}}}
    streams = {"input": f"no JSON\n{json.dumps(line)}\n", "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *serve], cwd=tmp_path, env=environ, check=False, **streams)
    assert done.returncode == 0
    assert all(json.loads(one)["jsonrpc"] == "2.0" for one in done.stdout.splitlines()), done.stdout
