// The grid of pages on a canvas. A page is one cell; where the pool has more pages than there is
// room for cells, a cell stands for several and shows their mixture. Drawn only when something has
// changed or still fades.

import { fitCanvas, reducedMotion, themeColours } from "./dom.js";
import { indexed, references, stateOf } from "./pool.js";

const LARGEST_CELL = 22;
const SMALLEST_CELL = 2;
const ROUND_FROM = 8; // cells of this size and more have gaps and rounded corners
const COUNT_FROM = 15; // and from here on a shared page shows its count
const MANY_CELLS = 8000; // from here on cells are drawn as the pixels of an image
const FLASH_MS = 900;
const COPY_MS = 1800;
const FADE_MS = 60; // between two looks of what fades: smooth enough, and easy on a laptop's battery

export class PageMap {
  /** `onPoint(page or null)` is told which page is looked at. A click holds on to it. */
  constructor(canvas, onPoint, { height = null, cell = LARGEST_CELL } = {}) {
    this.canvas = canvas;
    this.onPoint = onPoint;
    this.height = height;
    this.largest = cell;
    this.pool = null;
    this.span = "used";
    this.cursor = null;
    this.pinned = false;
    this.outlined = null; // a set of pages, those of one sequence
    this.flashes = new Map(); // page -> when it changed
    this.copies = []; // {source, target, at}
    this.frame = null;
    this.retheme();
    new ResizeObserver(() => this.layout()).observe(canvas.parentElement);
    canvas.addEventListener("pointermove", (event) => this.#hover(event));
    canvas.addEventListener("pointerleave", () => this.pinned || this.#point(null));
    canvas.addEventListener("click", (event) => this.#pin(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => {
      if (this.cursor === null && canvas.matches(":focus-visible")) this.#point(0);
    });
    canvas.addEventListener("blur", () => this.pinned || this.#point(null));
  }

  retheme() {
    this.colours = themeColours();
    this.rgb = Object.fromEntries(
      Object.entries(this.colours).map(([name, value]) => [name, toRgb(value)]));
    this.redraw();
  }

  setPool(pool) {
    this.pool = pool;
    this.flashes.clear();
    this.copies = [];
    this.layout();
  }

  setSpan(span) {
    this.span = span;
    this.layout();
  }

  outline(pages) {
    this.outlined = pages && pages.length ? new Set(pages) : null;
    this.redraw();
  }

  /** Shows what a view has changed. */
  update(changed, copies) {
    const now = performance.now();
    for (const page of changed) this.flashes.set(page, now);
    for (const [source, target] of copies) this.copies.push({ source, target, at: now });
    if (this.#pagesWanted() !== this.wanted) this.layout();
    else this.redraw();
  }

  isCopied(page) {
    return this.copies.some((copy) => copy.target === page);
  }

  layout() {
    if (!this.pool) return;
    this.wanted = this.#pagesWanted();
    const width = Math.floor(this.canvas.parentElement.clientWidth);
    if (width === 0) return;
    const height = this.height ?? (window.innerWidth < 700 ? 300 : 380);
    this.perCell = 1;
    this.cell = this.#cellFor(width, height);
    while (this.cell < SMALLEST_CELL) {
      this.perCell *= 2;
      this.cell = this.#cellFor(width, height);
    }
    this.columns = Math.max(1, Math.floor(width / this.cell));
    this.rows = Math.ceil(this.wanted / this.perCell / this.columns);
    this.shown = Math.min(this.pool.size, this.rows * this.columns * this.perCell);
    this.cells = Math.ceil(this.shown / this.perCell);
    this.context = fitCanvas(this.canvas, width, this.rows * this.cell);
    this.image = null;
    this.redraw();
  }

  redraw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#draw();
    });
  }

  /** The largest whole size at which all cells fit; below 1 where none does. */
  #cellFor(width, height) {
    const cells = Math.ceil(this.wanted / this.perCell);
    for (let size = this.largest; size > 0; size--) {
      if (Math.floor(width / size) * Math.floor(height / size) >= cells) return size;
    }
    return 0;
  }

  #pagesWanted() {
    const { size, highest } = this.pool;
    if (this.span === "all") return size;
    let pages = 150; // grows in leaps, so that the grid keeps its shape for a while
    while (pages <= highest) pages = Math.ceil(pages * 1.5);
    return Math.min(size, pages);
  }

  #draw() {
    if (!this.pool || !this.context || !this.canvas.clientWidth) return;
    const now = performance.now();
    this.copies = this.copies.filter((copy) => now - copy.at < COPY_MS);
    for (const [page, at] of this.flashes) if (now - at > FLASH_MS) this.flashes.delete(page);
    const { width, height } = this.canvas;
    this.context.save();
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.restore();
    if (this.cells > MANY_CELLS || this.perCell > 1) this.#drawImage();
    else this.#drawCells(now);
    this.#drawCopies(now);
    this.#drawCursor();
    const moving = this.copies.length > 0 || (this.flashes.size > 0 && !reducedMotion());
    if (moving) setTimeout(() => this.redraw(), FADE_MS);
  }

  #colour(page) {
    const code = this.pool.codes[page];
    switch (stateOf(code)) {
      case "free": return "free";
      case "cached": return "cached";
      case "owned": return indexed(code) ? "owned" : "filling";
      default: return references(code) >= 4 ? "shared-many" : "shared";
    }
  }

  #drawCells(now) {
    const { context, cell } = this;
    const gap = cell >= ROUND_FROM ? Math.max(1.5, cell * 0.12) : cell >= 4 ? 1 : 0;
    const size = cell - gap;
    const still = reducedMotion();
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `600 ${Math.round(cell * 0.5)}px system-ui, sans-serif`;
    for (let page = 0; page < this.shown; page++) {
      const [x, y] = this.#corner(page);
      const name = this.#colour(page);
      context.globalAlpha = this.outlined && !this.outlined.has(page) ? 0.28 : 1;
      context.fillStyle = this.colours[name];
      this.#cellPath(x, y, size);
      context.fill();
      const flash = this.flashes.get(page);
      if (flash !== undefined && !still) {
        context.globalAlpha *= 0.55 * (1 - (now - flash) / FLASH_MS);
        context.fillStyle = this.colours.ink;
        context.fill();
      }
      const count = references(this.pool.codes[page]);
      if (count > 1 && cell >= COUNT_FROM) {
        context.globalAlpha = this.outlined && !this.outlined.has(page) ? 0.4 : 1;
        context.fillStyle = this.colours["on-shared"];
        context.fillText(count > 99 ? "99" : count, x + size / 2, y + size / 2 + 0.5);
      }
    }
    context.globalAlpha = 1;
  }

  /** One pixel a cell, enlarged: tens of thousands of cells in a few milliseconds. */
  #drawImage() {
    const { columns, rows, perCell } = this;
    if (!this.image) {
      this.small = new OffscreenCanvas(columns, rows);
      this.image = new ImageData(columns, rows);
    }
    const data = this.image.data;
    data.fill(0);
    for (let cell = 0; cell < this.cells; cell++) {
      const first = cell * perCell;
      const last = Math.min(first + perCell, this.shown);
      let red = 0, green = 0, blue = 0, lit = 0;
      for (let page = first; page < last; page++) {
        const [r, g, b] = this.rgb[this.#colour(page)];
        red += r; green += g; blue += b;
        lit += !this.outlined || this.outlined.has(page) ? 1 : 0;
      }
      const number = last - first;
      data[cell * 4] = red / number;
      data[cell * 4 + 1] = green / number;
      data[cell * 4 + 2] = blue / number;
      data[cell * 4 + 3] = lit ? 255 : 70;
    }
    this.small.getContext("2d").putImageData(this.image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.small, 0, 0, columns * this.cell, rows * this.cell);
  }

  /** A copied page has a ring for a while, and an arc from where it was copied. */
  #drawCopies(now) {
    const { context, cell } = this;
    const still = reducedMotion();
    const centre = cell / 2;
    for (const { source, target, at } of this.copies) {
      if (source >= this.shown || target >= this.shown) continue;
      const age = (now - at) / COPY_MS;
      const [x, y] = this.#corner(target);
      const [fromX, fromY] = this.#corner(source);
      context.strokeStyle = this.colours.copied;
      context.globalAlpha = still ? 1 : 1 - age ** 2;
      const line = (context.lineWidth = Math.max(2, cell * 0.16));
      // Within its cell, since nothing is drawn beyond the edge of the canvas.
      this.#cellPath(x + line / 2, y + line / 2, Math.max(3, cell * 0.88) - line);
      context.stroke();
      if (this.perCell === 1 && !still) {
        context.globalAlpha *= 0.6;
        context.lineWidth = 1.5;
        context.beginPath();
        context.moveTo(fromX + centre, fromY + centre);
        const bend = Math.min(40, Math.abs(fromX - x) / 3 + 14);
        const top = Math.min(fromY, y) + centre - bend; // below instead where above is no room
        context.quadraticCurveTo((fromX + x) / 2 + centre,
          top > 0 ? top : Math.max(fromY, y) + centre + bend, x + centre, y + centre);
        context.stroke();
      }
    }
    context.globalAlpha = 1;
  }

  #drawCursor() {
    if (this.cursor === null || this.cursor >= this.shown) return;
    const [x, y] = this.#corner(this.cursor);
    this.context.strokeStyle = this.colours.ink;
    this.context.lineWidth = 2;
    this.#cellPath(x, y, Math.max(4, this.cell >= ROUND_FROM ? this.cell * 0.88 : this.cell));
    this.context.stroke();
  }

  #cellPath(x, y, size) {
    this.context.beginPath();
    if (this.cell >= ROUND_FROM) this.context.roundRect(x, y, size, size, size * 0.22);
    else this.context.rect(x, y, size, size);
  }

  #corner(page) {
    const cell = Math.floor(page / this.perCell);
    return [(cell % this.columns) * this.cell, Math.floor(cell / this.columns) * this.cell];
  }

  #hover(event) {
    if (!this.pinned) this.#point(this.#pageAt(event));
  }

  #pin(event) {
    const page = this.#pageAt(event);
    this.pinned = page !== null && !(this.pinned && page === this.cursor);
    this.#point(page);
  }

  #pageAt(event) {
    if (!this.pool || !this.columns) return null;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.cell);
    const row = Math.floor((event.clientY - box.top) / this.cell);
    const page = (row * this.columns + column) * this.perCell;
    return column >= 0 && column < this.columns && page >= 0 && page < this.shown ? page : null;
  }

  #key(event) {
    if (!this.pool) return;
    const row = this.columns * this.perCell;
    const by = { ArrowRight: this.perCell, ArrowLeft: -this.perCell, ArrowDown: row, ArrowUp: -row,
      Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") {
      this.pinned = false;
      this.#point(null);
    }
    if (by === undefined) return;
    event.preventDefault();
    const next = (this.cursor ?? 0) + by;
    this.#point(Math.max(0, Math.min(this.shown - 1, next)));
  }

  #point(page) {
    if (page === this.cursor) return;
    this.cursor = page;
    this.onPoint(page);
    this.redraw();
  }
}

/** [red, green, blue] of a colour as the browser tells it: rgb(r, g, b). */
function toRgb(colour) {
  return colour.match(/\d+/g).slice(0, 3).map(Number);
}
