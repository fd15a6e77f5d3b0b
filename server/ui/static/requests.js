// The queue, and the requests that ended lately with where their prompts came from.

import { element, seconds, shortId } from "./dom.js";

const MAX_ROWS = 12;
const MAX_QUEUE = 12;
const REASONS = {
  never_seen: "never seen before",
  evicted: "was cached, and had to make room",
  partial_page: "what is left fills no page",
  last_token: "all is cached; the last token is computed, to have something to sample from",
  no_free_page: "there was no page to copy it to",
  caching_off: "caching is off",
  scored: "log-probabilities of the prompt were asked for",
};

export class Requests {
  constructor(queue, queueAbout, rows) {
    this.queue = queue;
    this.queueAbout = queueAbout;
    this.rows = rows;
    this.mine = new Set(); // ids of calls made by this page
  }

  clear() {
    this.rows.replaceChildren(
      element("tr", { class: "empty" },
        element("td", { colspan: "7" }, "Requests that end while this page is open show here.")));
  }

  setAll(requests) {
    this.clear();
    this.add(requests);
  }

  add(requests) {
    if (!requests.length) return;
    this.rows.querySelector(".empty")?.remove();
    for (const request of requests) this.rows.prepend(this.#row(request));
    while (this.rows.children.length > MAX_ROWS) this.rows.lastChild.remove();
  }

  updateQueue(pool) {
    const waiting = pool.queue.map((number) => pool.sequences.get(number)).filter(Boolean);
    this.queueAbout.textContent = pool.numWaiting ? `${pool.numWaiting} in the queue` : "the queue is empty";
    this.queue.replaceChildren(...waiting.slice(0, MAX_QUEUE).map((each) =>
      element("li", { class: each.stage }, `${shortId(each.request_id)} `,
        element("span", {}, `${each.prompt} tok`))));
  }

  #row(request) {
    const mine = [...this.mine].some((id) => request.request_id.startsWith(id));
    return element("tr", {},
      element("th", { scope: "row", title: request.request_id },
        shortId(request.request_id), request.choices > 1 ? ` ×${request.choices}` : "",
        mine ? element("span", { class: "mine", title: "from this page" }, "yours") : null),
      element("td", { class: "wide" }, this.#bar(request)),
      element("td", { class: "num" }, request.cached === null ? "–" : `${request.cached}/${request.prompt}`),
      element("td", { class: "num" }, String(request.tokens)),
      element("td", { class: "num desk" },
        seconds(request.queue_ms === null ? null : request.queue_ms + request.prefill_ms)),
      element("td", { class: "num" }, seconds(request.total_ms)),
      element("td", { class: "desk" }, request.finish));
  }

  /** Tokens from full pages, from inside a page, and computed, as parts of one bar. */
  #bar(request) {
    const full = request.in_full_pages ?? request.cached ?? 0;
    const inside = request.inside_page ?? 0;
    const computed = request.prompt - full - inside;
    const why = REASONS[request.miss_reason];
    const title = `${full} tokens from full pages, ${inside} from inside a page, ` +
      `${computed} computed${why ? `: ${why}` : ""}`;
    const bar = element("div", { class: "bar", role: "img", "aria-label": title, title });
    for (const [kind, tokens] of [["full", full], ["inside", inside], ["computed", computed]]) {
      const part = element("i", { class: kind });
      part.style.flexGrow = tokens;
      bar.append(part);
    }
    return bar;
  }
}
