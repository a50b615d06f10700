"""The status page in a real browser, at a real node of a real cell."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, sync_playwright

from kvstore import Client, NamespaceSpec
from tests.cluster.cells import cell
from tests.integration.nodes import NodeProcess, wait_for

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
             "--disable-component-update", "--disable-quic"]  # fmt: skip
SHOTS = Path("build/status-page")
EVIL = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    with cell(tmp_path_factory.mktemp("cell"), capacity="64MiB", gone_after="2s") as nodes:
        work(nodes[0])
        yield nodes


def work(process: NodeProcess) -> None:
    """Hits, misses, and a model whose name is markup."""
    spec = NamespaceSpec(EVIL, 16, 64 << 10)
    with Client(process.target, timeout=20.0) as client:
        namespace = client.namespace(spec)
        keys = namespace.keys(range(16 * 40))
        namespace.put(keys, [np.full(64 << 10, 7, np.uint8)] * 40)
        into = [np.empty(64 << 10, np.uint8) for _ in keys]
        for _ in range(5):
            assert namespace.get(keys, into) == 40
        assert namespace.get(namespace.keys(range(9000, 9000 + 16 * 60)), into[:1] * 60) == 0


@pytest.fixture(scope="module")
def browser_page(three: list[NodeProcess]) -> Iterator[Page]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser.new_page(viewport={"width": 1280, "height": 1400})
        browser.close()


def opened(page: Page, process: NodeProcess, path: str = "/") -> Page:
    """The page of a node, once it shows the node's numbers."""
    page.goto(f"http://{process.http}{path}")
    until(page, "document.title.includes('·')")
    return page


def until(page: Page, condition: str) -> None:
    wait_for(lambda: page.evaluate(condition), condition)


def test_a_browser_is_shown_the_node_and_programs_the_index(three: list[NodeProcess], browser_page: Page) -> None:
    page = opened(browser_page, three[0])
    assert page.locator("#who").inner_text().startswith(f"node {three[0].node_id[:8]}")
    status, text = three[0].get("/")
    assert (status, json.loads(text)["node_id"]) == (200, three[0].node_id)


def test_what_is_shown_is_what_the_node_says(three: list[NodeProcess], browser_page: Page) -> None:
    page = opened(browser_page, three[0])
    until(page, "document.getElementById('rate').textContent !== '–'")
    assert page.locator("#rate").inner_text() == "76.9 %"  # 200 of 260
    assert page.locator("#misses tbody tr").all_inner_texts() == ["absent\t60"]
    assert page.locator("#nodes tbody tr").count() == 2
    assert page.locator("#nodes .badge.live").count() == 2
    assert page.locator("#tiers tbody tr").count() == 1
    assert "640" in page.locator("#hottest tbody tr").first.inner_text()  # tokens
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "light.png", full_page=True)


def test_names_that_clients_give_are_text_and_nothing_else(three: list[NodeProcess], browser_page: Page) -> None:
    page = opened(browser_page, three[0])
    assert EVIL in page.locator("#namespaces").inner_text()
    assert page.locator("img").count() == 0
    assert "kvstore" in page.title()


def test_nothing_is_loaded_from_elsewhere(three: list[NodeProcess], browser_page: Page) -> None:
    asked: list[str] = []
    browser_page.on("request", lambda request: asked.append(request.url))
    opened(browser_page, three[0])
    assert {url.split("/")[2] for url in asked if url.startswith("http")} == {three[0].http}


def test_dark_mode_follows_the_reader(three: list[NodeProcess], browser_page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    browser_page.emulate_media(color_scheme="light")
    light = opened(browser_page, three[0]).evaluate(colour)
    browser_page.emulate_media(color_scheme="dark")
    dark = opened(browser_page, three[0]).evaluate(colour)
    browser_page.screenshot(path=SHOTS / "dark.png", full_page=True)
    browser_page.emulate_media(color_scheme="light")
    assert light != dark


def test_all_of_it_can_be_used_by_keyboard(three: list[NodeProcess], browser_page: Page) -> None:
    page = opened(browser_page, three[0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "pause"
    page.keyboard.press("Enter")
    assert page.locator("#pause").get_attribute("aria-pressed") == "true"
    page.keyboard.press("p")
    assert page.locator("#pause").get_attribute("aria-pressed") == "false"
    page.keyboard.press("w")
    assert page.evaluate("document.activeElement.id") == "findings"


def test_on_a_narrow_screen_nothing_is_cut_off(three: list[NodeProcess], browser_page: Page) -> None:
    browser_page.set_viewport_size({"width": 390, "height": 844})
    page = opened(browser_page, three[0])
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot(path=SHOTS / "narrow.png", full_page=True)
    browser_page.set_viewport_size({"width": 1280, "height": 1400})


def test_a_node_that_dies_is_seen_on_the_pages_of_the_others_and_on_its_own(
    three: list[NodeProcess], browser_page: Page
) -> None:
    three[2].kill()
    page = opened(browser_page, three[0])
    until(page, "!!document.querySelector('#nodes .suspect, #nodes .gone')")
    until(page, "document.querySelector('#findings').innerText.includes('cluster status')")
    until(page, "!!document.querySelector('#recent tbody')")
    page.screenshot(path=SHOTS / "trouble.png", full_page=True)
    opened(browser_page, three[1])
    three[1].kill()
    until(page, "document.getElementById('away').classList.contains('on')")
    assert "does not answer" in page.locator("#away").inner_text()
