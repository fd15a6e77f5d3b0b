"""The page in a real browser, over a real engine with a tiny model: what a person does and sees."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import Browser, find_chromium
from conftest_types import TinyModelDir

from engine.build import build_engine, load_engine
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.engine import Engine
from engine.protocols import StepRunner
from engine.text import Tokenizer
from kv_cache import CacheManager
from scheduler import Scheduler, SchedulerConfig, StepPlan, StepResult

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="needs Chromium (on Debian: apt-get install chromium)"
)
NUM_PAGES = 256
# A pool and an event stream of the test's own, in the page: what the page's modules make of views.
FOLLOW = """
    (async () => {
      const { Pool } = await import('/ui/pool.js');
      const { call, events } = await import('/ui/api.js');
      window.follower = { pool: null, views: 0 };
      (async () => {
        for await (const { event, data } of events(await call('ui/events?interval=0'))) {
          if (event === 'hello') follower.pool = new Pool(data);
          if (event === 'view') { follower.pool.apply(data, 1); follower.views++; }
        }
      })();
    })()
"""


@dataclass
class AtPace:
    """A runner that takes as long as a larger model would: there is something to be seen."""

    runner: StepRunner
    step_seconds: float = 0.02

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self.step_seconds)
        return self.runner.execute(plan)


@dataclass
class Site:
    """A running server, its engine, and the browser that has it open."""

    url: str
    client: EngineClient
    cache: CacheManager
    browser: Browser

    def legend(self, state: str) -> int:
        """A count as the page shows it."""
        shown = self.browser.evaluate(
            f"[...document.querySelectorAll('#legend li')]"
            f".find((item) => item.textContent.startsWith({json.dumps(state)}))"
            f".querySelector('b').textContent"
        )
        return int(shown)

    def wait_settled(self) -> None:
        """Nothing runs, and the page shows the cache as it is."""
        deadline = time.monotonic() + 60
        while True:
            stats = self.client.stats
            shown = (self.legend("cached"), self.legend("free"), self.legend("owned"))
            if shown == (stats.pages_cached, stats.pages_free, 0) and stats.num_running == 0:
                return
            assert time.monotonic() < deadline, (shown, stats)
            time.sleep(0.05)

    def ask(self, text: str, button: str = "#send") -> None:
        self.browser.click("#question")
        self.browser.type(text)
        self.browser.click(button)
        self.browser.wait_for("!document.querySelector('#stop').hidden")

    def wait_answered(self) -> None:
        self.browser.wait_for("document.querySelector('#stop').hidden")

    def set_field(self, name: str, value: str) -> None:
        self.browser.evaluate(f"document.querySelector('#set-{name}').value = {json.dumps(value)}")


@pytest.fixture(scope="module")
def site(
    tiny_model_dir: TinyModelDir,
    live_server_factory: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    folder = tiny_model_dir("llama")
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        page_size=4,
        num_pages=NUM_PAGES,
        threads=1,
        self_check=False,
    )
    caches: list[CacheManager] = []

    def build(report: Any) -> Engine:
        loaded = load_engine(config, report)
        caches.append(CacheManager(NUM_PAGES, 4))
        scheduler = Scheduler(SchedulerConfig(), caches[0])
        return Engine(scheduler, AtPace(loaded.runner), loaded.info)

    client = EngineClient(build, in_thread=True)
    server = live_server_factory(
        client, Tokenizer.load(folder), served_model_names=("tiny",), ui_show_text=True
    )
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield Site(server.base_url, client, caches[0], browser)
    server.stop()


@pytest.fixture
def opened(site: Site) -> Iterator[Site]:
    """The page, freshly loaded over an empty cache; it must not complain about anything."""
    httpx.post(f"{site.url}/reset_prefix_cache").raise_for_status()
    site.browser.resize(1280, 900)
    site.browser.complaints.clear()
    site.browser.open(f"{site.url}/")
    site.browser.wait_for("document.querySelector('#status').dataset.state === 'live'")
    site.browser.wait_for("document.querySelector('#legend b').textContent !== ''")
    site.set_field("max_tokens", "24")
    yield site
    assert site.browser.complaints == []


def test_a_question_is_answered_and_its_pages_stay_cached(opened: Site) -> None:
    opened.ask("hello world, this is what a server says")
    opened.wait_answered()
    assert opened.browser.evaluate("document.querySelector('.answer .text').textContent") != ""
    facts = opened.browser.evaluate("document.querySelector('.facts').textContent")
    assert "0 cached" in facts
    opened.wait_settled()
    assert opened.legend("cached") > 5
    row = opened.browser.wait_for("document.querySelector('#recent tr:not(.empty)')?.textContent")
    assert "yours" in row


def test_eight_like_this_share_their_prompt(opened: Site) -> None:
    opened.ask("one two-three four five, says the server, and five more", "#send-many")
    opened.browser.wait_for("document.querySelectorAll('#lanes li').length >= 8")
    opened.wait_answered()
    facts = opened.browser.evaluate("document.querySelector('.facts').textContent")
    assert facts.startswith("8 prompts, together")
    assert opened.browser.evaluate("document.querySelectorAll('.answer').length") == 8
    stats = opened.client.stats
    assert stats.prefix_hits > 0
    opened.wait_settled()


def test_the_pool_in_the_browser_is_the_engines(opened: Site) -> None:
    opened.browser.evaluate(FOLLOW)
    opened.browser.wait_for("window.follower?.views > 0")
    opened.set_field("n", "3")
    opened.ask("the quick brown fox jumps over the lazy dog")
    opened.wait_answered()
    opened.wait_settled()
    expected = json.dumps(opened.cache.page_codes(), separators=(",", ":"))
    opened.browser.wait_for(f"JSON.stringify([...follower.pool.codes]) === '{expected}'")
    assert opened.browser.evaluate("follower.pool.sequences.size") == 0
    assert opened.browser.evaluate("follower.views") > 3


def test_choices_stand_side_by_side_and_tokens_are_coloured(opened: Site) -> None:
    opened.set_field("n", "2")
    opened.browser.evaluate("document.querySelector('#set-logprobs').checked = true")
    opened.ask("hello world")
    opened.wait_answered()
    texts = opened.browser.evaluate(
        "[...document.querySelectorAll('.side .answer')].map((node) =>"
        " [node.querySelector('.text').textContent,"
        "  [...node.querySelectorAll('.token')].map((t) => t.textContent).join('')])"
    )
    assert len(texts) == 2
    assert all(text == joined != "" for text, joined in texts)
    assert opened.browser.evaluate("document.querySelectorAll('.token.surprising').length") > 0
    assert "%" in opened.browser.evaluate("document.querySelector('.token').title")


def test_the_map_says_what_a_page_holds_by_mouse_and_by_keyboard(opened: Site) -> None:
    opened.set_field("max_tokens", "4")
    opened.ask("hello world")
    opened.wait_answered()
    opened.wait_settled()
    detail = "document.querySelector('#page-detail').textContent"
    x, y = opened.browser.evaluate(
        "(() => { const map = document.querySelector('#page-map');"
        " map.scrollIntoView({block: 'center'}); const box = map.getBoundingClientRect();"
        " return [box.x, box.y]; })()"
    )
    opened.browser.point_at(x + 5, y + 5)
    said = opened.browser.wait_for(f"{detail}.includes('evicted after') && {detail}")
    assert said.startswith("Page 0")
    assert "cached" in said and "<|im_start|>" in said  # the chat template's first token
    opened.browser.evaluate("document.querySelector('#page-map').focus()")
    opened.browser.press("ArrowRight")
    opened.browser.wait_for(f"{detail}.startsWith('Page 1')")


def test_while_paused_nothing_moves_and_then_all_is_caught_up(opened: Site) -> None:
    opened.browser.click("[data-pace=paused]")
    opened.ask("hello world, this is a paused page")
    opened.wait_answered()
    assert opened.legend("cached") == 0
    opened.browser.click("[data-pace=live]")
    opened.wait_settled()
    assert opened.legend("cached") > 0


def test_slow_motion_plays_a_step_at_a_time(opened: Site) -> None:
    opened.browser.click("[data-pace=slow]")
    opened.browser.wait_for("document.querySelector('#status').dataset.state === 'slow'")
    opened.ask("hello world, this is slow")
    opened.wait_answered()
    behind = "/\\d+ views behind/.test(document.querySelector('#status-text').textContent)"
    opened.browser.wait_for(behind)
    opened.browser.click("[data-pace=live]")
    opened.wait_settled()


def test_pages_that_were_left_hold_no_connections(opened: Site) -> None:
    for _ in range(8):  # a browser opens six to a host
        opened.browser.open(f"{opened.url}/ui")
        opened.browser.wait_for("document.querySelector('#status').dataset.state === 'live'", 20)


def test_what_people_and_models_write_is_text(opened: Site) -> None:
    attack = "<img src=x onerror=\"document.title='broken'\"><b>bold</b>"
    opened.set_field("max_tokens", "3")
    opened.ask(attack)
    opened.wait_answered()
    assert opened.browser.evaluate("document.querySelector('.mine-said').textContent") == attack
    assert opened.browser.evaluate("document.querySelectorAll('#talk img, #talk b').length") == 0
    assert opened.browser.evaluate("document.title") == "Octavo"


def test_an_answer_can_be_stopped(opened: Site) -> None:
    opened.set_field("max_tokens", "200")
    opened.browser.evaluate("document.querySelector('#set-temperature').value = 0")
    opened.ask("hello world")
    opened.browser.click("#stop")
    opened.wait_answered()
    opened.wait_settled()


def test_on_a_phone_one_thing_is_shown_at_a_time(opened: Site) -> None:
    opened.browser.resize(390, 844, mobile=True)
    visible = "['#map-view', '#chat-view'].map((id) => document.querySelector(id).offsetWidth > 0)"
    assert opened.browser.evaluate(visible) == [True, False]
    opened.browser.click("#tab-chat")
    assert opened.browser.evaluate(visible) == [False, True]
    assert opened.browser.evaluate("document.documentElement.scrollWidth") == 390
    opened.browser.evaluate("document.querySelector('#tab-chat').focus()")
    opened.browser.press("ArrowLeft")
    assert opened.browser.evaluate(visible) == [True, False]
    assert opened.browser.evaluate("document.documentElement.scrollWidth") == 390


def test_everything_can_be_reached_with_the_tab_key(opened: Site) -> None:
    reached = set()
    for _ in range(30):
        opened.browser.press("Tab")
        reached.add(opened.browser.evaluate("document.activeElement.id"))
    assert {"key-button", "theme-button", "page-map", "timeline", "question", "send"} <= reached


def test_the_theme_follows_the_system_until_it_is_chosen(opened: Site) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    opened.browser.prefer(prefers_color_scheme="light")
    light = opened.browser.evaluate(ground)
    opened.browser.prefer(prefers_color_scheme="dark")
    dark = opened.browser.evaluate(ground)
    assert light != dark
    opened.browser.click("#theme-button")
    assert opened.browser.evaluate(ground) == light
    opened.browser.evaluate("localStorage.clear()")


def test_a_server_with_a_key_asks_for_it(
    site: Site,
    tiny_model_dir: TinyModelDir,
    live_server_factory: Callable[..., Any],
    tmp_path: Path,
) -> None:
    folder = tiny_model_dir("llama")
    config = EngineConfig(
        model=str(folder), dtype="float32", num_pages=32, threads=1, self_check=False
    )
    client = EngineClient(partial(build_engine, config), in_thread=True)
    server = live_server_factory(client, Tokenizer.load(folder), api_keys=("sesame",))
    browser = site.browser
    try:
        browser.open(f"{server.base_url}/ui")
        browser.wait_for("document.querySelector('#key-dialog').open")
        browser.type("wrong")
        browser.press("Enter")
        browser.wait_for("document.querySelector('#key-about').textContent.includes('not valid')")
        browser.wait_for("document.querySelector('#key-dialog').open")
        browser.type("sesame")
        browser.press("Enter")
        browser.wait_for("document.querySelector('#status').dataset.state === 'live'")
        assert browser.evaluate("sessionStorage.getItem('octavo-key')") == "sesame"
        assert browser.evaluate("localStorage.getItem('octavo-key')") is None
    finally:
        browser.open("about:blank#done")
        server.stop()
