// What is said of the page that is pointed at: its state, who holds it, how long it has been so and,
// where the operator lets it be shown, what its tokens say. Contents are asked for when somebody has
// rested on a page for a moment, and only then.

import { call } from "./api.js";
import { count, element, seconds, shortId } from "./dom.js";
import { indexed, references, stateOf } from "./pool.js";

const REST_MS = 120;
const HINT = "Point at a page, or focus the map and use the arrow keys.";

export class PageDetail {
  constructor(place) {
    this.place = place;
    this.page = null;
    this.pool = null;
    this.contents = null;
    this.timer = null;
    this.abort = null;
    this.place.textContent = HINT;
  }

  setPool(pool, hello) {
    this.pool = pool;
    this.hello = hello;
  }

  show(page, span, copied) {
    this.span = span;
    this.copied = copied;
    if (page !== this.page) {
      this.page = page;
      this.contents = null;
      this.abort?.abort();
      clearTimeout(this.timer);
      if (page !== null) this.timer = setTimeout(() => this.#ask(page), REST_MS);
    }
    this.refresh();
  }

  refresh() {
    if (this.page === null || !this.pool) {
      this.place.textContent = HINT;
      return;
    }
    const { page, pool } = this;
    const code = pool.codes[page];
    const where = this.span > 1 ? `Pages ${page} to ${page + this.span - 1}, the first:` : `Page ${page}`;
    const parts = [
      element("strong", {}, where),
      element("span", {}, this.#state(code)),
      element("span", {}, this.#age()),
    ];
    const holders = pool.holders(page);
    if (holders.length) {
      const names = holders.slice(0, 8).map((each) => `${shortId(each.request_id)}·${each.choice}`);
      if (holders.length > 8) names.push(`and ${holders.length - 8} more`);
      parts.push(element("span", {}, `held by ${names.join(", ")}`));
    }
    parts.push(...this.#told());
    this.place.replaceChildren(...parts);
  }

  #state(code) {
    const name = stateOf(code);
    if (name === "free") return "free";
    if (name === "cached") return "cached: nobody holds it, its content can still be found";
    const holders = name === "owned" ? "owned by one" : `shared by ${references(code)}`;
    const fill = this.pool.fill(this.page);
    const full = indexed(code)
      ? "full, can be found by others"
      : `${fill} of ${this.pool.pageSize} tokens`;
    return `${this.copied ? "just copied, " : ""}${holders}, ${full}`;
  }

  #age() {
    const since = this.pool.changedAt[this.page];
    return since ? `so for ${seconds(performance.now() - since)}` : "so since before you looked";
  }

  #told() {
    if (!this.contents) return [];
    const parts = [];
    const before = this.contents.handed_out_before;
    if (before !== null) {
      parts.push(element("span", {}, `evicted after ${count(before, "other page")}`));
    }
    if (this.contents.tokens) {
      parts.push(element("span", { class: "tokens" },
        ...this.contents.tokens.map((token) => element("span", {}, token))));
    } else if (this.contents.num_tokens && !this.hello.shows_text) {
      parts.push(element("span", { class: "faint" }, "text is off (--ui-show-text)"));
    }
    return parts;
  }

  async #ask(page) {
    this.abort = new AbortController();
    try {
      const response = await call(`ui/pages/${page}`, { signal: this.abort.signal });
      const contents = await response.json();
      if (page === this.page) {
        this.contents = contents;
        this.refresh();
      }
    } catch {
      // It is an extra: the rest of the line stands without it.
    }
  }
}
