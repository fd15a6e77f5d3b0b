// A conversation with the model: streamed, with choices side by side, and with eight equal requests
// at once for whoever wants to see pages being shared.

import { Answer } from "./answer.js";
import { call, events } from "./api.js";
import { byId, count, element, seconds } from "./dom.js";
import { Settings } from "./settings.js";

const MANY = 8;
const EXAMPLES = [
  "Explain in three sentences why the sky is blue.",
  "Write a short poem about a library at night.",
  "List five fruits and a colour for each.",
];

export class Playground {
  /** `onCall(id)` is told the id of every call, `onRefused(error)` of keys that are not valid. */
  constructor(onCall, onRefused) {
    this.onCall = onCall;
    this.onRefused = onRefused;
    this.messages = [];
    this.abort = null;
    this.talk = byId("talk");
    this.question = byId("question");
    this.settings = new Settings(byId("fields"), byId("settings-summary"));
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(1);
    });
    byId("send-many").addEventListener("click", () => this.send(MANY));
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("clear").addEventListener("click", () => this.clear());
    this.question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send(1);
      }
    });
    this.clear();
  }

  clear() {
    this.abort?.abort();
    this.messages = [];
    this.talk.replaceChildren(element("div", { class: "welcome" },
      element("p", {}, "Ask something and watch the map: the prompt takes pages, a second question " +
        "finds the first one's pages again, and choices share their prompt until they part."),
      ...EXAMPLES.map((text) => element("button", { type: "button", class: "example", click: () => {
        this.question.value = text;
        this.question.focus();
      } }, text))));
  }

  async send(times) {
    const text = this.question.value.trim() || (times > 1 ? this.#lastQuestion() : "");
    const sampling = this.settings.read();
    if (!text || !sampling || this.abort) {
      if (!text) this.question.focus();
      return;
    }
    this.talk.querySelector(".welcome")?.remove();
    if (this.messages.at(-1)?.role === "user") this.messages.pop(); // it was never answered
    this.messages.push({ role: "user", content: text });
    this.question.value = "";
    this.talk.append(element("p", { class: "mine-said" }, text));
    const group = element("div", { class: "call" });
    this.talk.append(group);
    this.#setBusy(true);
    const answers = times > 1
      ? await this.#askMany(group, times, sampling) : await this.#ask(group, sampling);
    this.#setBusy(false);
    this.#settle(answers, group);
  }

  /** One chat call; its answers, which may be incomplete. */
  async #ask(group, sampling) {
    const number = sampling.n ?? 1;
    const answers = Array.from({ length: number }, (_, index) =>
      new Answer(number > 1 ? `choice ${index + 1}` : ""));
    const facts = this.#lay(group, answers, number > 1 ? "side" : "");
    await this.#stream(answers, facts, () =>
      ["v1/chat/completions", { messages: this.#conversation(), ...sampling }]);
    return answers;
  }

  /** So many equal requests at once. They go as the prompts of one call, each a request of its own
   * to the engine: a browser would not open as many connections. */
  async #askMany(group, times, { seed, n, logprobs, top_logprobs: top, ...sampling }) {
    const answers = Array.from({ length: times }, (_, index) => new Answer(`request ${index + 1}`));
    const facts = this.#lay(group, answers, "many");
    await this.#stream(answers, facts, async (signal) => {
      const body = { messages: this.#conversation() };
      const { tokens } = await (await call("tokenize", { body, signal })).json();
      return ["v1/completions", { prompt: Array(times).fill(tokens), ...sampling }];
    });
    return answers;
  }

  #lay(group, answers, layout) {
    const facts = element("p", { class: "facts" });
    group.append(element("div", { class: layout }, ...answers.map((each) => each.node)), facts);
    this.talk.scrollTop = this.talk.scrollHeight;
    return facts;
  }

  async #stream(answers, facts, prepare) {
    this.abort = new AbortController();
    const { signal } = this.abort;
    const started = performance.now();
    let first = null;
    try {
      const [path, body] = await prepare(signal);
      const response = await call(path, { signal, body: { ...body, stream: true,
        stream_options: { include_usage: true }, cache_report: true, timings: true } });
      for await (const { data } of events(response)) {
        if (data.error) throw new Error(data.error.message);
        this.onCall(data.id);
        for (const choice of data.choices) {
          if (choice.delta?.content || choice.text) first ??= performance.now() - started;
          answers[choice.index].take(choice);
        }
        if (data.usage) this.#tellFacts(facts, data, first);
        this.#scroll();
      }
    } catch (error) {
      this.#fail(error, answers);
    }
    this.abort = null;
  }

  #fail(error, answers) {
    const stopped = error.name === "AbortError";
    if (!stopped && error.status === 401) this.onRefused(error);
    for (const answer of answers) {
      if (!answer.finish) answer.fail(stopped ? "stopped" : error.message);
    }
  }

  #tellFacts(place, { usage, timings, cache_report: reports }, first) {
    const cached = usage.prompt_tokens_details.cached_tokens;
    const inside = (reports ?? []).reduce((sum, each) => sum + each.inside_page_tokens, 0);
    const prompts = reports?.length > 1 ? `${reports.length} prompts, together` : "prompt";
    const speed = timings?.tokens_per_second;
    const parts = [
      element("span", {}, `${prompts} ${count(usage.prompt_tokens, "token")}`),
      element("span", { class: cached ? "hit" : "" },
        `${cached} cached${inside ? ` (${inside} inside a page)` : ""}`),
      element("span", {}, `${usage.completion_tokens} made`),
      element("span", {}, `first after ${seconds(first)}`),
      speed ? element("span", {}, `${speed.toFixed(1)} tokens/s`) : "",
    ];
    place.replaceChildren(...parts);
  }

  /** The conversation goes on with the first answer, or the one that is picked. */
  #settle(answers, group) {
    const good = answers.filter((answer) => answer.text);
    if (!good.length) return;
    const at = this.messages.push({ role: "assistant", content: good[0].text }) - 1;
    if (good.length === 1) return;
    const name = `pick-${at}`;
    for (const answer of good) {
      const pick = element("input", { type: "radio", name, checked: answer === good[0], change: () => {
        this.messages[at].content = answer.text;
        group.querySelectorAll(".answer").forEach((node) => node.classList.remove("picked"));
        answer.node.classList.add("picked");
      } });
      answer.head.append(element("label", { class: "pick" }, pick, "continue"));
    }
    good[0].node.classList.add("picked");
  }

  #conversation() {
    const system = this.settings.systemPrompt;
    return [...(system ? [{ role: "system", content: system }] : []), ...this.messages];
  }

  #lastQuestion() {
    const last = this.messages.findLast((message) => message.role === "user");
    return last?.content ?? EXAMPLES[0];
  }

  #setBusy(busy) {
    byId("send").disabled = busy;
    byId("send-many").disabled = busy;
    byId("stop").hidden = !busy;
    this.talk.setAttribute("aria-busy", String(busy));
  }

  #scroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.talk;
    if (scrollHeight - scrollTop - clientHeight < 160) this.talk.scrollTop = scrollHeight;
  }
}
