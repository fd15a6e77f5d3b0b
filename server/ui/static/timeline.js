// The last steps as bars: tokens computed in prefill and in decode, on a root scale, since the one is
// often a hundred times the other; marks above for preemptions, below for copies.

import { count, fitCanvas, seconds, themeColours } from "./dom.js";

const PITCH = 7;
const BAR = 5;
const HEIGHT = 120;
const TOP = 12;
const BASE = HEIGHT - 12;
const MAX_STEPS = 600;

export class Timeline {
  constructor(canvas, detail) {
    this.canvas = canvas;
    this.detail = detail;
    this.steps = [];
    this.cursor = null; // counted from the newest
    this.frame = null;
    this.colours = themeColours();
    this.#tell();
    new ResizeObserver(() => this.redraw()).observe(canvas.parentElement);
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      this.#point(Math.floor((box.right - event.clientX) / PITCH));
    });
    canvas.addEventListener("pointerleave", () => this.#point(null));
    canvas.addEventListener("blur", () => this.#point(null));
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.#point(Math.max(0, (this.cursor ?? -1) + by));
    });
  }

  retheme() {
    this.colours = themeColours();
    this.redraw();
  }

  add(steps) {
    if (!steps.length) return;
    if (this.steps.length && steps[0].number <= this.steps.at(-1).number) this.steps = []; // a new engine
    this.steps.push(...steps);
    if (this.steps.length > MAX_STEPS) this.steps.splice(0, this.steps.length - MAX_STEPS);
    this.redraw();
  }

  redraw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#draw();
    });
  }

  #draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    const context = fitCanvas(this.canvas, width, HEIGHT);
    const shown = this.steps.slice(-Math.floor(width / PITCH));
    const most = Math.max(16, ...shown.map((step) => step.prefill + step.decode));
    const scale = (BASE - TOP) / Math.sqrt(most);
    this.#drawScale(context, width, most, scale);
    for (const [index, step] of shown.entries()) {
      const x = width - (shown.length - index) * PITCH;
      const whole = Math.sqrt(step.prefill + step.decode) * scale;
      const decode = step.prefill + step.decode
        ? (whole * step.decode) / (step.prefill + step.decode) : 0;
      context.fillStyle = this.colours.decode;
      context.fillRect(x, BASE - decode, BAR, decode);
      context.fillStyle = this.colours.prefill;
      context.fillRect(x, BASE - whole, BAR, whole - decode);
      if (step.copies) dot(context, x + BAR / 2, BASE + 6, this.colours.copied);
      if (step.preemptions) triangle(context, x + BAR / 2, BASE - whole - 8, this.colours.preempted);
      if (shown.length - 1 - index === this.cursor) {
        context.strokeStyle = this.colours.ink;
        context.strokeRect(x - 1, TOP, BAR + 2, BASE - TOP + 0.5);
      }
    }
  }

  #drawScale(context, width, most, scale) {
    context.font = "11px system-ui, sans-serif";
    context.strokeStyle = this.colours.line;
    context.fillStyle = this.colours["ink-2"];
    context.lineWidth = 1;
    for (const tokens of [0, 10, 100, 1000, 10000].filter((n) => n <= most)) {
      const y = Math.round(BASE - Math.sqrt(tokens) * scale) + 0.5;
      context.beginPath();
      context.moveTo(0, y);
      context.lineTo(width, y);
      context.stroke();
      if (tokens) context.fillText(tokens.toLocaleString("en"), 0, y - 3);
    }
  }

  #point(index) {
    const inside = index !== null && index >= 0 && index < this.steps.length;
    this.cursor = inside ? index : null;
    this.#tell();
    this.redraw();
  }

  #tell() {
    const step = this.cursor === null ? null : this.steps[this.steps.length - 1 - this.cursor];
    if (!step) {
      this.detail.textContent = "Newest on the right. Point at a bar, or use the arrow keys.";
      return;
    }
    const parts = [
      `${step.prefill} prefill and ${step.decode} decode tokens of ${count(step.sequences, "sequence")}`,
      step.copies ? `${count(step.copies, "page")} copied` : null,
      step.preemptions ? `${step.preemptions} preempted` : null,
      seconds(step.seconds * 1000),
    ];
    this.detail.textContent = `Step ${step.number}: ${parts.filter(Boolean).join(", ")}`;
  }
}

function dot(context, x, y, colour) {
  context.fillStyle = colour;
  context.beginPath();
  context.arc(x, y, 2.6, 0, 7);
  context.fill();
}

function triangle(context, x, y, colour) {
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(x - 4, y);
  context.lineTo(x + 4, y);
  context.lineTo(x, y + 6);
  context.fill();
}
