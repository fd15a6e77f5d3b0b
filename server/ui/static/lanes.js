// One lane for each sequence: its stage, and its page table as a strip of cells in the colours of the
// map, the last one filled as far as its tokens reach. Queued sequences stand below those that run.

import { count, element, fitCanvas, shortId, themeColours } from "./dom.js";
import { indexed, references, stateOf } from "./pool.js";

const MAX_LANES = 24;
const CELL = 11;
const HEIGHT = 14;
const LINGER_MS = 1200;
const STAGES = {
  prefill: "prefill",
  decode: "decode",
  preempted: "preempted",
  waiting: "waiting",
  held: "held back",
};
const ABOUT = {
  held: "waits for another request that computes the same prefix right now",
  preempted: "gave its pages up for others and will go on",
  waiting: "waits for a seat or for pages",
  prefill: "its prompt is being computed",
  decode: "makes a token at every step",
};

export class Lanes {
  /** `onOutline(pages or null)` is told whose pages to show on the map. */
  constructor(list, about, onOutline) {
    this.list = list;
    this.about = about;
    this.onOutline = onOutline;
    this.lanes = new Map();
    this.colours = themeColours();
  }

  retheme() {
    this.colours = themeColours();
  }

  clear() {
    this.lanes.clear();
    this.list.replaceChildren();
  }

  update(pool) {
    const all = [...pool.sequences.values()];
    const running = all.filter((each) => each.table.length);
    running.sort((a, b) => a.number - b.number);
    const waiting = pool.queue.map((number) => pool.sequences.get(number)).filter(Boolean);
    const shown = [...running, ...waiting].slice(0, MAX_LANES);
    const left = running.length + pool.numWaiting - shown.length;
    this.about.textContent = all.length
      ? `${running.length} running, ${pool.numWaiting} waiting${left > 0 ? `; ${left} not shown` : ""}`
      : "none; ask the playground something";
    const present = new Set();
    for (const sequence of shown) {
      present.add(sequence.number);
      let lane = this.lanes.get(sequence.number);
      if (!lane) {
        lane = this.#make(sequence);
        this.lanes.set(sequence.number, lane);
        this.list.append(lane.row);
      }
      this.#fill(lane, sequence, pool);
    }
    for (const [number, lane] of this.lanes) if (!present.has(number)) this.#retire(number, lane);
  }

  #make(sequence) {
    const name = element("span", { class: "lane-name" });
    const stage = element("span", { class: "stage" });
    const strip = element("canvas", { "aria-hidden": "true" });
    const numbers = element("span", { class: "lane-numbers" });
    const row = element("li", { tabindex: "0", title: sequence.request_id }, name, stage,
      element("div", { class: "strip" }, strip), numbers);
    const lane = { row, name, stage, strip, numbers, table: [], drawn: "" };
    const outline = () => this.onOutline(lane.table);
    const release = () => this.onOutline(null);
    row.addEventListener("pointerenter", outline);
    row.addEventListener("pointerleave", release);
    row.addEventListener("focus", outline);
    row.addEventListener("blur", release);
    return lane;
  }

  #fill(lane, sequence, pool) {
    lane.table = sequence.table;
    const choices = sequence.choices > 1 ? ` ×${sequence.choices}` : "";
    lane.name.textContent = `${shortId(sequence.request_id)}·${sequence.choice}${choices}`;
    lane.stage.textContent = STAGES[sequence.stage];
    lane.stage.className = `stage ${sequence.stage}`;
    lane.stage.title = ABOUT[sequence.stage];
    const cached = sequence.cached === null ? "" : `, ${sequence.cached} cached`;
    lane.numbers.textContent = `${sequence.computed}/${sequence.known} tok${cached}`;
    const pages = count(sequence.table.length, "page");
    lane.row.setAttribute("aria-label",
      `Request ${shortId(sequence.request_id)}, choice ${sequence.choice}: ` +
      `${STAGES[sequence.stage]}, ${sequence.computed} of ${sequence.known} tokens in ${pages}${cached}`);
    this.#draw(lane, sequence, pool);
  }

  #draw(lane, sequence, pool) {
    const width = lane.strip.parentElement.clientWidth || 300;
    const pitch = Math.min(CELL, width / Math.max(sequence.table.length, 1));
    const context = fitCanvas(lane.strip, width, HEIGHT);
    const size = pitch > 4 ? pitch - 1.5 : pitch;
    for (const [index, page] of sequence.table.entries()) {
      const code = pool.codes[page];
      const filled = Math.max(0, Math.min(1, sequence.computed / pool.pageSize - index));
      context.fillStyle = this.colours.free;
      context.fillRect(index * pitch, 0, size, HEIGHT);
      context.fillStyle = this.colours[colourOf(code)];
      context.fillRect(index * pitch, HEIGHT * (1 - filled), size, HEIGHT * filled);
    }
  }

  /** A sequence that has ended fades, so that the eye can follow. */
  #retire(number, lane) {
    this.lanes.delete(number);
    lane.row.classList.add("gone");
    if (lane.row.contains(document.activeElement) || lane.row.matches(":hover")) this.onOutline(null);
    setTimeout(() => lane.row.remove(), LINGER_MS);
  }
}

function colourOf(code) {
  if (stateOf(code) === "shared") return references(code) >= 4 ? "shared-many" : "shared";
  if (stateOf(code) === "owned") return indexed(code) ? "owned" : "filling";
  return stateOf(code);
}
