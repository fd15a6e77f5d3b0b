// The playground's sampling controls. Fields left empty are left out of the request: the server's
// defaults, which may be the model's own, hold then.

import { element } from "./dom.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", type: "number", min: 0, max: 2, step: 0.1, value: "0.7" },
  { name: "top_p", label: "Top p", type: "number", min: 0.05, max: 1, step: 0.05, value: "" },
  { name: "top_k", label: "Top k", type: "number", min: 0, max: 1000, step: 1, value: "" },
  { name: "max_tokens", label: "Most tokens", type: "number", min: 1, max: 100000, step: 1, value: "120" },
  { name: "n", label: "Choices", type: "number", min: 1, max: 8, step: 1, value: "1" },
  { name: "seed", label: "Seed", type: "number", min: 0, max: 999999999, step: 1, value: "" },
];

export class Settings {
  constructor(place, summary) {
    this.summary = summary;
    this.inputs = {};
    for (const field of FIELDS) {
      const { name, label, ...attributes } = field;
      const input = element("input", { id: `set-${name}`, inputmode: "decimal", ...attributes,
        placeholder: "default", input: () => this.#summarise() });
      this.inputs[name] = input;
      place.append(element("label", { for: `set-${name}` }, label, input));
    }
    this.system = element("textarea", { id: "set-system", rows: "2", placeholder: "none" });
    this.logprobs = element("input", { id: "set-logprobs", type: "checkbox" });
    place.append(
      element("label", { for: "set-system", class: "wide" }, "System prompt", this.system),
      element("label", { for: "set-logprobs", class: "wide check" }, this.logprobs,
        "Colour tokens by how likely they were"));
    this.logprobs.addEventListener("change", () => this.#summarise());
    this.#summarise();
  }

  /** Fields of a request; null where one of them is not valid, which the browser then shows. */
  read() {
    const body = {};
    for (const [name, input] of Object.entries(this.inputs)) {
      if (!input.checkValidity()) {
        input.closest("details").open = true;
        input.reportValidity();
        return null;
      }
      if (input.value !== "") body[name] = Number(input.value);
    }
    if (this.logprobs.checked) Object.assign(body, { logprobs: true, top_logprobs: 4 });
    return body;
  }

  get systemPrompt() {
    return this.system.value.trim();
  }

  #summarise() {
    const { temperature, max_tokens: limit, n } = this.inputs;
    const parts = [`temperature ${temperature.value || "default"}`];
    if (limit.value) parts.push(`at most ${limit.value} tokens`);
    if (Number(n.value) > 1) parts.push(`${n.value} choices`);
    if (this.logprobs.checked) parts.push("coloured");
    this.summary.textContent = parts.join(", ");
  }
}
