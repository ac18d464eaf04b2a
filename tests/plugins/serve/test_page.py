"""The search page in a headless Chromium: typing, dropping, dragging, the keyboard, narrow screens, accessibility.

`bash tests/browser.sh` installs playwright, Chromium and axe-core; without one of them its tests are skipped.
$LEXVL_AXE may name axe-core's file axe.min.js.
"""

import base64
import io
import json
import os
import re
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from lexvl_plugins.serve.server import ApiKeys
from tests.plugins.serve.served_colours import CAPTION, HOSTILE, PICTURES, running, serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

# Milliseconds until an expectation fails: a busy machine is no defect of the page.
playwright.expect.set_options(timeout=60_000)

AXE = Path(os.environ.get("LEXVL_AXE") or Path(__file__).parents[3] / "node_modules/axe-core/axe.min.js")
EXAMPLE = "a red picture"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("page"), dense=True, examples=(EXAMPLE,)) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield launched
        launched.close()


@contextmanager
def opened(browser, client, link="", wide=1280):
    """A page; at its end it has had no error, no request to another server, and no dialog of a script."""
    page = browser.new_page(viewport={"width": wide, "height": 900})
    problems = []
    page.on("console", lambda message: problems.append(message.text) if is_problem(message) else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
    own = ("blob:", client.url)
    page.on("request", lambda request: None if request.url.startswith(own) else problems.append(request.url))
    page.goto(client.url + link)
    page.wait_for_selector("section")
    yield page
    page.close()
    assert problems == []


def test_equal_scores_are_in_the_order_of_code_points(browser, client) -> None:
    script = "async (texts) => texts.sort((await import('/view.js')).compareTexts)"
    texts = ["\U0001f415", "\uff42", "b", "", "ab", "a", "\U0001f4151", "\ue000", "b"]
    with opened(browser, client) as page:
        assert page.evaluate(script, texts) == sorted(texts)


def is_problem(message) -> bool:
    """Errors; but an expression that is half typed gets status 400, which the browser logs."""
    return message.type == "error" and "the server responded with a status of 400" not in message.text


def names(page, column="colours") -> list[str]:
    return [text.partition(" ")[2] for text in page.locator(f"section[aria-label={column}] .id").all_inner_texts()]


def details_of(page, name, column="colours"):
    return page.locator(f"section[aria-label={column}]").get_by_role("button", name=f"Details of {name}")


def first_is(page, name, column="colours") -> None:
    playwright.expect(page.locator(f"section[aria-label={column}] .id").first).to_have_text(f"1 {name}")


def number(text: str) -> float:
    return float(text.replace(",", ""))


def score_of(card) -> float:
    """The score in full, which the percent of a card has as its title."""
    return number(card.locator(".score").get_attribute("title").split()[1])


def test_typing_finds_and_bars_sum_to_the_score(browser, client) -> None:
    with opened(browser, client) as page:
        page.locator("#query").press_sequentially("red blue")
        first_is(page, "half.png")
        first_is(page, "half.png", "twin")
        card = page.locator("section[aria-label=colours] .hit").first
        playwright.expect(card.locator(".bars li")).to_have_count(2)
        products = [number(text) for text in card.locator(".product").all_inner_texts()]
        assert sum(products) == score_of(card) > 0


def test_a_score_is_percent_of_the_greatest_possible(browser, client) -> None:
    with opened(browser, client, "?q=%2Bred+blue&mix=50") as page:
        first_is(page, "half.png")
        greatest = client.ask(text="+red blue")["greatest"]
        for card in page.locator("section[aria-label=colours] .hit").all():
            score = card.locator(".score")
            assert score.inner_text() == f"{score_of(card) / greatest:.0%}"
            assert score.get_attribute("title").endswith(f"of at most {greatest:,.0f} ({score.inner_text()})")
        assert "%" not in page.locator("section[aria-label=twin] .score").first.inner_text()
        first_is(page, "half.png", "both")
        playwright.expect(page.locator("section[aria-label=both] .score").first).to_have_text("100%")
        details_of(page, "half.png").click()
        playwright.expect(page.locator("dialog h2")).to_contain_text(f"of at most {greatest:,.0f}")


def test_an_error_leaves_no_older_hits_and_nonsense_gets_a_warning(browser, client) -> None:
    with opened(browser, client, "?q=red") as page:
        column = page.locator("section[aria-label=colours]")
        first_is(page, "red.png")
        page.locator("#query").fill("+red -(")
        playwright.expect(column.locator(".problem")).to_contain_text("-(")
        playwright.expect(column.locator(".hit, .chip")).to_have_count(0)
        page.locator("#query").fill("xqzzyv")
        playwright.expect(column.locator(".problem")).to_contain_text("no word of this query is a term of the model")
        page.locator("#query").fill("red")
        first_is(page, "red.png")
        playwright.expect(column.locator(".problem")).to_be_empty()


def test_the_empty_page_has_a_title_an_example_and_pictures_that_find_similar_ones(browser, client) -> None:
    with opened(browser, client) as page:
        page.get_by_role("button", name=EXAMPLE).click()
        first_is(page, "red.png")
        assert page.locator("#query").input_value() == EXAMPLE
    with opened(browser, client) as page:
        assert page.title() == "colours, twin - LexVL search"
        playwright.expect(page.locator("section[aria-label=colours] .sample")).to_have_count(4)
        page.locator("section[aria-label=colours]").get_by_role("button", name="Like half.png").click()
        playwright.expect(page.locator("#sent-name")).to_have_text("like half.png")
        first_is(page, "half.png")
        playwright.expect(page.locator(".sample")).to_have_count(0)


def test_bars_are_shares_of_the_score_and_shift_nothing(browser, client) -> None:
    with opened(browser, client, "?q=red+blue") as page:
        card = page.locator("section[aria-label=colours] .hit").first
        playwright.expect(card.locator(".bar")).to_have_count(2)
        script = "(bars) => bars.map((bar) => parseFloat(bar.style.width))"
        score, widths = score_of(card), card.locator(".bar").evaluate_all(script)
        products = [number(text) for text in card.locator(".product").all_inner_texts()]
        assert widths == pytest.approx([100 * product / score for product in products])
        full = card.bounding_box()["height"]
        page.route("**/api/products", lambda route: None)  # the products never come
        page.reload()
        playwright.expect(card.locator(".score")).to_have_attribute("title", re.compile(f"^score {score:,.0f} "))
        assert card.locator(".bar").count() == 0 and card.bounding_box()["height"] == full


def test_dark_where_the_system_is_dark(browser, client) -> None:
    with opened(browser, client, "?q=red+blue") as page:
        shade = "() => getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)[0]"
        assert page.evaluate(shade) == 255
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(shade) < 40


def test_suggestions_by_the_keyboard_alone(browser, client) -> None:
    with opened(browser, client) as page:
        page.keyboard.press("Tab")
        page.keyboard.press("/")
        page.keyboard.type("+bl")
        playwright.expect(page.get_by_role("option", name="blue")).to_be_visible()
        page.keyboard.press("ArrowDown")
        assert page.locator("#query").get_attribute("aria-activedescendant") == "suggestion-0"
        page.keyboard.press("Enter")
        assert page.locator("#query").input_value() == "+blue "
        page.keyboard.type("-r")
        playwright.expect(page.get_by_role("option", name="red")).to_be_visible()
        page.keyboard.press("Escape")
        playwright.expect(page.locator("#suggestions [role=option]")).to_have_count(0)
        held = []
        page.route("**/api/suggest?*", lambda route: held.append(route))
        with page.expect_response("**/api/suggest?*"):  # which comes after the key, and opens nothing
            with page.expect_request("**/api/suggest?*"):
                page.keyboard.type("e")
            page.keyboard.press("Escape")
            held[0].continue_()
        page.unroute("**/api/suggest?*")
        page.wait_for_timeout(100)
        assert page.locator("#suggestions [role=option]").count() == 0
        page.keyboard.type("d")
        playwright.expect(page.locator("section[aria-label=colours] .hit")).to_have_count(1)
        for _ in range(12):  # to the first slider, however many controls there are before it
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('.chip [type=range]')"):
                break
        page.keyboard.press("ArrowRight")
        playwright.expect(page.locator(".chip .weight").first).to_have_text("2")
        page.keyboard.press("Delete")
        playwright.expect(page.locator(".chip").first).to_have_class("chip out")


def test_a_chip_is_dragged_left_out_and_restored(browser, client) -> None:
    with opened(browser, client, "?q=red+blue+blue") as page:
        slider = page.get_by_role("slider", name="Weight of red")
        playwright.expect(slider).to_have_value("128")
        box = slider.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2, steps=8)
        page.mouse.up()
        playwright.expect(slider).to_have_value("510")
        first_is(page, "half.png")
        playwright.expect(page.locator("section[aria-label=colours] .id").nth(1)).to_have_text("2 red.png")
        page.get_by_role("button", name="Leave out blue").click()
        playwright.expect(page.locator("section[aria-label=colours] .hit")).to_have_count(2)
        page.get_by_role("button", name="Restore blue").click()
        playwright.expect(page.locator("section[aria-label=colours] .hit")).to_have_count(3)


def test_a_link_reproduces_the_state(browser, client) -> None:
    with opened(browser, client, "?q=red+blue") as page:
        page.get_by_role("button", name="Leave out red").click()
        page.locator("summary").click()
        page.locator("#filter-field").select_option("meta.place")
        page.locator("#filter-value").fill("top")
        page.get_by_role("button", name="add").click()
        page.locator("#where").fill("-green")
        playwright.expect(page.locator("section[aria-label=colours] .hit")).to_have_count(2)
        page.locator("#mix").fill("20")
        playwright.expect(page.locator("section[aria-label=both]")).to_be_visible()
        link, before = urlsplit(page.url).query, names(page)
        assert json.loads(parse_qs(link)["weights"][0]) == {"colours": {"red": 0}}
    with opened(browser, client, f"?{link}") as page:
        playwright.expect(page.locator("section[aria-label=colours] .hit")).to_have_count(2)
        assert names(page) == before
        assert page.locator("#where").input_value() == "-green" and page.locator("#mix").input_value() == "20"
        playwright.expect(page.locator("#filter-list li")).to_have_count(1)
        page.get_by_role("button", name="Remove the filter meta.place is top").click()
        page.locator("#where").fill("")
        playwright.expect(page.locator("section[aria-label=colours] .hit")).to_have_count(2)


def test_links_with_nonsense_open_the_page(browser, client) -> None:
    for link in ("?weights=[1]&filters={", "?weights=null&filters=3&hits=-9&mix=x", "?q=" + "x" * 1000):
        with opened(browser, client, link) as page:
            playwright.expect(page.locator("section")).to_have_count(3)


def test_a_dropped_picture_is_the_query(browser, client) -> None:
    out = io.BytesIO()
    PICTURES["sub/green.png"].save(out, format="PNG")
    with opened(browser, client) as page:
        script = """(content) => {
            const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], "green.png", { type: "image/png" }));
            const details = { dataTransfer: transfer, bubbles: true, cancelable: true };
            for (const type of ["dragenter", "dragover", "drop"])
                document.body.dispatchEvent(new DragEvent(type, details));
        }"""
        page.evaluate(script, base64.b64encode(out.getvalue()).decode())
        first_is(page, "sub/green.png")
        first_is(page, "sub/green.png", "twin")
        playwright.expect(page.locator("#sent-name")).to_have_text("your picture")
        page.get_by_role("button", name="Remove the picture of the query").click()
        playwright.expect(page.locator(".hit")).to_have_count(0)


def test_a_file_that_is_no_picture_gets_a_line(browser, client) -> None:
    with opened(browser, client) as page:
        page.locator("#picture").set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"nothing"})
        playwright.expect(page.locator("#message")).to_contain_text("not a picture of a known format")
        page.locator("#query").fill("red")
        playwright.expect(page.locator("#message")).to_be_empty()
        playwright.expect(page.locator("#said")).to_have_text("colours: 2 hits; twin: 4 hits")


def test_hovering_shows_where_the_terms_are(browser, client) -> None:
    with opened(browser, client, "?q=red") as page:
        half = details_of(page, "half.png")
        half.hover()
        canvas = half.locator("canvas")
        playwright.expect(canvas).to_have_count(1)
        script = "(canvas) => [24, 216].map((x) => canvas.getContext('2d').getImageData(x, 120, 1, 1).data[3])"
        red, blue = canvas.evaluate(script)
        assert red < 30 and blue > 150  # the half without red is pale
        page.mouse.move(5, 5)
        playwright.expect(canvas).to_have_count(0)


def test_details_show_every_product_and_find_similar_ones(browser, client) -> None:
    with opened(browser, client, "?q=red+blue") as page:
        details_of(page, "half.png").click()
        playwright.expect(page.locator("dialog .note")).to_contain_text("2 products sum to")
        page.get_by_role("button", name="search for similar ones").click()
        playwright.expect(page.locator("#sent-name")).to_have_text("like half.png")
        first_is(page, "half.png")


def test_names_and_texts_of_documents_are_not_html(browser, client) -> None:
    hostile = urlencode({"q": "blue <img src=x onerror=alert(2)>", "where": '"><script>'})
    with opened(browser, client, f"?{hostile}") as page:
        playwright.expect(page.locator("#where")).to_have_value('"><script>')
        page.locator("#where").fill("")
        hostile = page.locator("section[aria-label=colours] .id").filter(has_text="onerror")
        playwright.expect(hostile).to_have_count(1)
        assert HOSTILE.split(" ", maxsplit=1)[0] in hostile.inner_text()
        page.locator("section[aria-label=colours] .picture").nth(0).click()
        playwright.expect(page.locator("dialog")).to_contain_text(CAPTION)
        assert page.locator("section script, section b, dialog script").count() == 0


def test_a_narrow_screen_has_one_column_and_no_sideways_scrolling(browser, client) -> None:
    with opened(browser, client, "?q=red+blue", wide=360) as page:
        first_is(page, "half.png")
        playwright.expect(page.locator("section[aria-label=colours] .bars li").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        upper, lower = (page.locator("section").nth(place).bounding_box() for place in (0, 1))
        assert upper["x"] == lower["x"] and upper["y"] + upper["height"] <= lower["y"]


def test_chips_are_folded_on_a_phone(browser, client) -> None:
    with opened(browser, client, "?q=red+blue+blue", wide=360) as page:
        column = page.locator("section[aria-label=colours]")
        fold = column.locator(".all button")
        playwright.expect(fold).to_have_text("terms and weights: 2")
        playwright.expect(column.locator(".chip")).to_have_count(0)
        assert column.locator(".hit").first.bounding_box()["y"] < 500
        fold.click()
        playwright.expect(column.locator(".chip")).to_have_count(2)
        page.get_by_role("button", name="Leave out blue").click()
        fold.click()
        playwright.expect(fold).to_have_text("terms and weights: 2, 1 changed")
        assert page.evaluate("document.activeElement.textContent") == "terms and weights: 2, 1 changed"


def test_every_target_has_24_pixels(browser, client) -> None:
    small = """() => [...document.querySelectorAll("button, input, select, summary, a, [role=option]")]
        .filter((one) => one.checkVisibility() && one.id !== "picture")
        .map((one) => [one.outerHTML.slice(0, 90), one.getBoundingClientRect()])
        .filter(([, box]) => Math.min(box.width, box.height) < 24)
        .map(([html, box]) => [html, box.width, box.height])"""
    for wide in (1280, 360):
        with opened(browser, client, "?q=red+blue&mix=50&where=-green", wide) as page:
            first_is(page, "half.png")
            for fold in page.locator(".all button").all():
                fold.click()
            page.locator("#filter-value").fill("top")
            page.get_by_role("button", name="add").click()
            page.locator("#query").press("End")
            page.locator("#query").press_sequentially(" g")
            playwright.expect(page.get_by_role("option", name="green")).to_be_visible()
            assert page.evaluate(small) == []
            page.keyboard.press("Escape")
            details_of(page, "half.png").first.click()
            playwright.expect(page.locator("dialog .bars button").first).to_be_attached()
            assert page.evaluate(small) == []


def test_one_region_says_how_many_hits_there_are_and_nothing_else_speaks(browser, client) -> None:
    with opened(browser, client) as page:
        said = page.locator("#said")
        playwright.expect(said).to_be_empty()
        page.locator("#query").press_sequentially("red")
        playwright.expect(said).to_have_text("colours: 2 hits; twin: 4 hits")
        page.locator("#query").fill("+red -(")
        playwright.expect(said).to_contain_text("at its end: expected a term")
        page.locator("#query").fill("green")
        playwright.expect(said).to_have_text(re.compile("^colours: 1 hit; twin"))
        live = "[aria-live], [role=status], [role=alert], [role=log], output"
        assert page.locator(live).evaluate_all("(found) => found.map((one) => one.id)") == ["said"]


def test_an_empty_column_offers_an_example(browser, client) -> None:
    with opened(browser, client, "?q=%2Bred+%2Bgreen") as page:
        column = page.locator("section[aria-label=colours]")
        playwright.expect(column.locator(".problem")).to_contain_text("no document has a term of the query")
        column.get_by_role("button", name=EXAMPLE).click()
        first_is(page, "red.png")
        playwright.expect(column.get_by_role("button", name=EXAMPLE)).to_have_count(0)


def test_without_an_answer_the_page_offers_to_try_again(browser, client) -> None:
    page = browser.new_page()
    busy = {"status": 503, "json": {"error": "too many requests at once; try again"}}
    page.route("**/api/indexes", lambda route: route.fulfill(status=502, body="<html>Bad Gateway"))
    page.goto(client.url + "?q=red")
    playwright.expect(page.locator("#message")).to_contain_text("the server answers 502")
    page.unroute("**/api/indexes")
    page.get_by_role("button", name="try again").click()
    first_is(page, "red.png")
    playwright.expect(page.locator("#message")).to_be_empty()
    again = page.locator("section[aria-label=colours]").get_by_role("button", name="try again")
    for answer, reason in (
        (lambda route: route.abort(), "the server does not answer"),
        (lambda route: route.fulfill(**busy), busy["json"]["error"]),
    ):
        page.route("**/api/search", answer)
        page.locator("#query").fill("green")
        playwright.expect(page.locator("section[aria-label=colours] .problem")).to_contain_text(reason)
        playwright.expect(page.locator(".hit")).to_have_count(0)
        page.unroute("**/api/search")
        again.click()
        first_is(page, "sub/green.png")
        page.locator("#query").fill("red")
        first_is(page, "red.png")
        playwright.expect(again).to_have_count(0)
    page.locator("#query").fill("+red -(")  # what stays wrong is not to be tried again
    playwright.expect(page.locator("section[aria-label=colours] .problem")).to_contain_text("-(")
    playwright.expect(again).to_have_count(0)
    page.route("**/api/search", lambda route: route.abort())
    page.locator("#query").fill("red")
    playwright.expect(again).to_be_visible()
    page.unroute("**/api/search")
    page.evaluate("dispatchEvent(new Event('online'))")  # as a browser does when the network is back
    first_is(page, "red.png")
    page.close()


def test_without_scripts_the_page_says_so(browser, client) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(client.url)
    playwright.expect(page.locator("noscript p")).to_be_visible()
    context.close()


def test_accessibility(browser, client) -> None:
    if not AXE.is_file():
        pytest.skip("no axe-core: npm install --no-save axe-core, or $LEXVL_AXE names axe.min.js")
    for wide, scheme in ((1280, "light"), (360, "light"), (1280, "dark")):
        with opened(browser, client, "?q=red+blue&mix=50&where=-green", wide) as page:
            page.emulate_media(color_scheme=scheme)
            first_is(page, "half.png")
            page.evaluate(AXE.read_text(encoding="utf-8"))
            assert broken_rules(page) == []
            details_of(page, "half.png").click()
            playwright.expect(page.locator("dialog .note")).to_contain_text("products sum to")
            assert broken_rules(page) == []


def broken_rules(page) -> list[str]:
    """Rules of axe-core, among them names of controls and contrast, that the page breaks, and where."""
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 10
    return [f"{one['id']}: {node['html'][:160]}" for one in found["violations"] for node in one["nodes"]]


def test_a_browser_sends_its_users_key_with_pictures_and_questions_too(browser, client) -> None:
    key = "0123456789abcdef"
    with client.service.shelf.borrow("colours") as index:
        path = index.served.path
    with running(path, keys=ApiKeys([key])) as guarded:
        credentials = {"username": "anyone", "password": key}
        known = SimpleNamespace(new_page=partial(browser.new_page, http_credentials=credentials))
        with opened(known, guarded) as page:
            page.locator("#query").press_sequentially("red")
            first_is(page, "red.png")
            loaded = "images => images.every(image => image.complete && image.naturalWidth > 0)"
            page.wait_for_function(f"({loaded})([...document.querySelectorAll('.hit img')])")
