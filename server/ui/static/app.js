// Brings the parts of the page together: stream, map, lanes, timeline, requests, playground, and
// what belongs to none of them (theme, key, tabs, tiles).

import { apiKey } from "./api.js";
import { PageDetail } from "./detail.js";
import { byId, count, element, segments } from "./dom.js";
import { Lanes } from "./lanes.js";
import { PageMap } from "./map.js";
import { Player } from "./player.js";
import { Playground } from "./playground.js";
import { Pool } from "./pool.js";
import { Requests } from "./requests.js";
import { Tiles } from "./tiles.js";
import { Timeline } from "./timeline.js";

const HIDDEN_MS = 20000; // a page out of sight for so long looks no more
const THEMES = ["auto", "light", "dark"];

class App {
  constructor() {
    this.pool = null;
    this.detail = new PageDetail(byId("page-detail"));
    this.map = new PageMap(byId("page-map"), (page) => this.#pointed(page));
    // On a narrow screen, where the playground hides the map.
    this.miniature = new PageMap(byId("mini-map"), () => {}, { height: 56, cell: 14 });
    this.maps = [this.map, this.miniature];
    this.lanes = new Lanes(byId("lanes"), byId("lanes-about"), (pages) => this.map.outline(pages));
    this.timeline = new Timeline(byId("timeline"), byId("step-detail"));
    this.requests = new Requests(byId("queue"), byId("queue-about"), byId("recent"));
    this.tiles = new Tiles(byId("tiles"), byId("legend"));
    this.playground = new Playground((id) => this.requests.mine.add(id), (error) => this.askKey(error));
    this.player = new Player({
      hello: (hello) => this.#hello(hello),
      view: (view) => this.#view(view),
      status: (name, text) => this.#status(name, text),
      refused: (error) => this.#refused(error),
    });
    this.requests.clear();
    segments(byId("pace"), "pace", (pace) => this.player.setPace(pace));
    segments(byId("span"), "span", (span) => this.map.setSpan(span));
    this.#setUpTheme();
    this.#setUpTabs();
    this.#setUpKey();
    this.#setUpSleep();
    setInterval(() => {
      this.detail.refresh();
      this.tiles.rest();
    }, 1000);
    this.player.open();
  }

  #hello(hello) {
    this.pool = new Pool(hello);
    for (const map of this.maps) map.setPool(this.pool);
    this.detail.setPool(this.pool, hello);
    this.lanes.clear();
    this.tiles.clear();
    this.requests.setAll(hello.requests);
    byId("notice").hidden = true;
    byId("model").textContent = hello.model;
    const megabytes = (hello.page_bytes * hello.num_pages) / 2 ** 20;
    const size = megabytes >= 1024 ? `${(megabytes / 1024).toFixed(1)} GiB` : `${Math.round(megabytes)} MiB`;
    byId("pages-about").textContent =
      `${count(hello.num_pages, "page")} of ${hello.page_size} tokens, ${size}` +
      (hello.prefix_caching ? "" : "; prefix caching is off");
  }

  #view(view) {
    const changed = this.pool.apply(view, performance.now());
    for (const map of this.maps) map.update(changed, view.copies);
    this.lanes.update(this.pool);
    this.timeline.add(view.steps);
    this.requests.add(view.requests);
    this.requests.updateQueue(this.pool);
    this.tiles.update(this.pool, view);
    const { owned, shared, cached, free } = this.pool.counts;
    byId("page-map").setAttribute("aria-label", `Page map: ${count(this.pool.size, "page")}, ` +
      `${owned} owned, ${shared} shared, ${cached} cached, ${free} free`);
    this.detail.refresh();
  }

  #pointed(page) {
    this.detail.show(page, this.map.perCell, page !== null && this.map.isCopied(page));
  }

  #status(name, text) {
    byId("status").dataset.state = name;
    byId("status-text").textContent = text;
  }

  #refused(error) {
    this.#status("trouble", "no map");
    if (error.status === 401) this.askKey(error);
    else this.#notice(error.message);
  }

  #notice(text) {
    byId("notice").textContent = text;
    byId("notice").hidden = false;
  }

  // ------------------------------------------------------------------------------------------ key

  #setUpKey() {
    const dialog = byId("key-dialog");
    byId("key-button").addEventListener("click", () => this.askKey(null));
    dialog.addEventListener("close", () => {
      const key = byId("key").value.trim();
      if (dialog.returnValue === "forget") apiKey.set("");
      else if (dialog.returnValue === "set" && key) apiKey.set(key);
      else return;
      this.player.open();
    });
  }

  askKey(error) {
    const dialog = byId("key-dialog");
    if (dialog.open) return;
    byId("key-about").textContent = error?.message ?? "The key that is sent with what this page asks.";
    byId("key").value = "";
    dialog.returnValue = "cancel";
    dialog.showModal();
    byId("key").focus();
  }

  // --------------------------------------------------------------------------------- theme, tabs

  #setUpTheme() {
    const button = byId("theme-button");
    const set = (theme) => {
      document.documentElement.dataset.theme = theme;
      localStorage.setItem("octavo-theme", theme);
      button.title = button.ariaLabel = `Theme: ${theme === "auto" ? "as the system's" : theme}`;
      for (const map of this.maps) map.retheme();
      this.lanes.retheme();
      this.timeline.retheme();
      if (this.pool) this.lanes.update(this.pool);
    };
    button.addEventListener("click", () => {
      const at = THEMES.indexOf(document.documentElement.dataset.theme);
      set(THEMES[(at + 1) % THEMES.length]);
    });
    const stored = localStorage.getItem("octavo-theme");
    set(THEMES.includes(stored) ? stored : "auto");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      set(document.documentElement.dataset.theme));
  }

  #setUpTabs() {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    const choose = (tab) => {
      document.body.dataset.tab = tab.dataset.tab;
      for (const each of tabs) {
        each.setAttribute("aria-selected", String(each === tab));
        each.tabIndex = each === tab ? 0 : -1;
      }
      for (const map of this.maps) map.layout();
    };
    for (const tab of tabs) {
      tab.addEventListener("click", () => choose(tab));
      tab.addEventListener("keydown", (event) => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
        const other = tabs.find((each) => each !== tab);
        choose(other);
        other.focus();
      });
    }
    document.querySelector(".skip").addEventListener("click", () => choose(byId("tab-chat")));
  }

  /** A page that nobody sees should not keep the engine watched; and one that was left behind in
   * the browser's history would keep its connections, of which a browser has six. */
  #setUpSleep() {
    addEventListener("pagehide", () => {
      this.player.close();
      this.playground.abort?.abort();
    });
    addEventListener("pageshow", (event) => event.persisted && this.player.open());
    let timer = null;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(() => this.player.close(), HIDDEN_MS);
      else if (!this.player.abort && this.player.pace !== "paused") this.player.open();
    });
  }
}

new App();
