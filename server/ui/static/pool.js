// The engine as the last view left it: every page's code, every sequence's page table. Whole views
// set it, all others say what has changed. Knows nothing of the screen.

// A page's code is 2 * references + (1 if its content can be found in the index).
export const references = (code) => code >> 1;
export const indexed = (code) => (code & 1) === 1;

export function stateOf(code) {
  if (code === 0) return "free";
  if (code === 1) return "cached";
  return code < 4 ? "owned" : "shared";
}

export class Pool {
  constructor(hello) {
    this.pageSize = hello.page_size;
    this.size = hello.num_pages;
    this.codes = new Uint32Array(this.size);
    this.changedAt = new Float64Array(this.size); // ms; 0: before we looked
    this.sequences = new Map();
    this.queue = [];
    this.numWaiting = 0;
    this.stats = null;
    this.highest = -1; // page that was ever seen in use or cached
    this.counts = { free: this.size, cached: 0, owned: 0, shared: 0 };
    this.saved = 0; // pages that sharing makes unnecessary
  }

  /** Takes in a view; returns the pages whose code has changed. */
  apply(view, now) {
    const changed = view.whole ? this.#setAll(view.runs, now) : this.#change(view.changes, now);
    if (view.whole) this.sequences.clear();
    for (const number of view.gone) this.sequences.delete(number);
    for (const told of view.sequences) {
      const before = this.sequences.get(told.number);
      const kept = before ? before.table.slice(0, told.pages_kept) : [];
      this.sequences.set(told.number, { ...told, table: kept.concat(told.pages) });
    }
    this.queue = view.queue;
    this.numWaiting = view.num_waiting;
    this.stats = view.stats;
    return changed;
  }

  holders(page) {
    return [...this.sequences.values()].filter((each) => each.table.includes(page));
  }

  /** How many tokens of a page are valid, where a sequence that fills it tells. */
  fill(page) {
    if (indexed(this.codes[page])) return this.pageSize;
    for (const each of this.sequences.values()) {
      const at = each.table.indexOf(page);
      if (at >= 0) return Math.max(0, Math.min(this.pageSize, each.computed - at * this.pageSize));
    }
    return 0;
  }

  #setAll(runs, now) {
    const changed = [];
    const first = this.stats === null;
    let page = 0;
    for (let i = 0; i < runs.length; i += 2) {
      for (const end = page + runs[i + 1]; page < end; page++) {
        if (this.codes[page] !== runs[i]) {
          changed.push(page);
          this.#set(page, runs[i], first ? 0 : now);
        }
      }
    }
    return first ? [] : changed;
  }

  #change(changes, now) {
    const changed = [];
    for (let i = 0; i < changes.length; i += 2) {
      changed.push(changes[i]);
      this.#set(changes[i], changes[i + 1], now);
    }
    return changed;
  }

  #set(page, code, now) {
    const before = this.codes[page];
    this.counts[stateOf(before)]--;
    this.counts[stateOf(code)]++;
    this.saved += Math.max(references(code) - 1, 0) - Math.max(references(before) - 1, 0);
    this.codes[page] = code;
    this.changedAt[page] = now;
    if (code && page > this.highest) this.highest = page;
  }
}
