// The figures above the map, and the legend with its counts.

import { element } from "./dom.js";

const STATES = [
  ["shared", "shared", "held by several sequences"],
  ["owned", "owned", "held by one; paler while it is being filled"],
  ["cached", "cached", "held by nobody; its content can still be found"],
  ["free", "free", "nothing in it"],
];
const RATE_MS = 3000; // rates are of so long

export class Tiles {
  constructor(tiles, legend) {
    this.values = {};
    for (const [name, label, title] of [
      ["running", "running", "sequences in the batch"],
      ["waiting", "waiting", "sequences in the queue, and calls on their way to it"],
      ["used", "pages in use", "of the whole pool"],
      ["saved", "sharing saves", "pages that would be needed beside these if nothing were shared"],
      ["hits", "from the cache", "of all prompt tokens since the start"],
      ["rate", "tokens/s", "made in the last seconds"],
    ]) {
      this.values[name] = element("dd", {}, "–");
      tiles.append(element("div", { title }, element("dt", {}, label), this.values[name]));
    }
    this.counts = {};
    for (const [state, label, title] of STATES) {
      this.counts[state] = element("b", {}, "");
      legend.append(element("li", { title }, element("span", { class: `swatch ${state}` }),
        `${label} `, this.counts[state]));
    }
    legend.append(element("li", { title: "copied before a write, a moment ago" },
      element("span", { class: "swatch copied" }), "just copied"));
    this.clear();
  }

  clear() {
    this.history = [];
  }

  update(pool, view) {
    const { stats } = view;
    const { counts, size } = pool;
    this.#set("running", stats.num_running);
    this.#set("waiting", stats.num_waiting);
    const used = counts.owned + counts.shared;
    this.#set("used", `${used.toLocaleString("en")}`, `${percent(used / size)}`);
    this.#set("saved", pool.saved.toLocaleString("en"), pool.saved === 1 ? "page" : "pages");
    this.#set("hits", stats.prefix_queries ? percent(stats.prefix_hits / stats.prefix_queries) : "–");
    this.#set("rate", this.#rate(stats));
    for (const [state] of STATES) this.counts[state].textContent = counts[state].toLocaleString("en");
  }

  /** No views come while nothing happens: then nothing is made. */
  rest() {
    const last = this.history.at(-1);
    if (last && performance.now() - last[0] > RATE_MS) this.#set("rate", "0");
  }

  #set(name, value, extra = "") {
    const place = this.values[name];
    const text = String(value);
    if (place.dataset.shown === text + extra) return;
    place.dataset.shown = text + extra;
    place.replaceChildren(text, extra ? element("small", {}, ` ${extra}`) : "");
  }

  #rate(stats) {
    const now = performance.now();
    this.history.push([now, stats.generation_tokens]);
    while (this.history.length > 2 && now - this.history[1][0] > RATE_MS) this.history.shift();
    const [then, before] = this.history[0];
    const made = stats.generation_tokens - before;
    if (now - then < 300) return "–";
    return made ? (made / ((now - then) / 1000)).toFixed(made > 100 ? 0 : 1) : "0";
  }
}

function percent(part) {
  return `${part > 0 && part < 0.1 ? (part * 100).toFixed(1) : Math.round(part * 100)} %`;
}
