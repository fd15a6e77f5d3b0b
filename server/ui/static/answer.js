// One answer as it is streamed: its text, or its tokens coloured by how likely they were. What the
// model writes stays text.

import { element } from "./dom.js";

const LIKELY = 0.9; // tokens from here on have no colour
const encoder = new TextEncoder();

export class Answer {
  constructor(title) {
    this.text = "";
    this.finish = null;
    this.body = element("div", { class: "text" });
    this.note = element("p", { class: "note" });
    this.head = element("p", { class: "answer-head" }, title);
    this.node = element("article", { class: "answer" }, title ? this.head : null, this.body, this.note);
    this.pending = []; // bytes of a character that is not whole yet
  }

  /** Adds what one choice of a chunk brought, of a chat or of a completion. */
  take(choice) {
    const text = choice.delta?.content ?? choice.text ?? "";
    this.text += text;
    const entries = choice.logprobs?.content;
    if (entries?.length) for (const entry of entries) this.#addToken(entry);
    else if (text) this.body.append(text);
    if (choice.finish_reason) {
      this.finish = choice.finish_reason;
      if (choice.finish_reason === "length") this.note.textContent = "cut off by the limit of tokens";
    }
  }

  fail(message) {
    this.node.classList.add("failed");
    this.note.textContent = message;
  }

  #addToken(entry) {
    const bytes = [...this.pending, ...(entry.bytes ?? encoder.encode(entry.token))];
    if (!bytes.length) return; // it ended the answer unseen
    const text = new TextDecoder().decode(new Uint8Array(bytes));
    if (text.endsWith("�") && bytes.length < 4) {
      this.pending = bytes;
      return;
    }
    this.pending = [];
    const probability = Math.exp(entry.logprob);
    const others = (entry.top_logprobs ?? [])
      .map((each) => `${JSON.stringify(each.token)} ${percent(Math.exp(each.logprob))}`);
    const token = element("span", { class: "token", title:
      `${percent(probability)}${others.length ? `\nlikeliest: ${others.join(", ")}` : ""}` }, text);
    if (probability < LIKELY) {
      // From pale to full as the surprise grows: 0 at 90 %, 1 at 0.1 % and less.
      const surprise = Math.min(1, Math.log(LIKELY / probability) / Math.log(900));
      token.style.setProperty("--surprise", `${Math.round(12 + 63 * surprise)}%`);
      token.classList.add("surprising");
    }
    this.body.append(token);
  }
}

function percent(probability) {
  const value = probability * 100;
  return `${value >= 10 ? Math.round(value) : value.toPrecision(2)} %`;
}
