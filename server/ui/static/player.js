// Keeps the stream of views open and plays it: live, a step at a time in slow motion, or not at all.
// What cannot be shown yet waits here; where too much waits, it is dropped and the stream is opened
// anew, which begins with a whole view.

import { ApiError, call, events } from "./api.js";

const LIVE_INTERVAL = 0.2;
const SLOW_STEP_MS = 500;
const MAX_WAITING = 1500;
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 8000;

export class Player {
  /** `on` has hello(data), view(data), status(name, text), refused(error). */
  constructor(on) {
    this.on = on;
    this.pace = "live";
    this.waiting = [];
    this.overflowed = false;
    this.interval = null;
    this.abort = null;
    this.retry = null;
    this.delay = FIRST_RETRY_MS;
    this.timer = null;
  }

  open() {
    this.close();
    this.interval = this.pace === "slow" ? 0 : LIVE_INTERVAL;
    this.waiting = [];
    this.overflowed = false;
    this.abort = new AbortController();
    this.#read(this.abort.signal);
  }

  close() {
    this.abort?.abort();
    this.abort = null;
    clearTimeout(this.retry);
  }

  setPace(pace) {
    this.pace = pace;
    clearInterval(this.timer);
    const wanted = pace === "slow" ? 0 : LIVE_INTERVAL;
    if (pace === "paused") {
      this.on.status("paused", "paused");
      return;
    }
    if (this.overflowed || this.interval !== wanted) this.open();
    if (pace === "slow") this.timer = setInterval(() => this.#playOne(), SLOW_STEP_MS);
    else while (this.waiting.length) this.#playOne();
    this.#tell();
  }

  get behind() {
    return this.waiting.length;
  }

  async #read(signal) {
    try {
      const response = await call(`ui/events?interval=${this.interval}`, { signal });
      this.delay = FIRST_RETRY_MS;
      for await (const { event, data } of events(response)) {
        if (signal.aborted) return;
        this.#take(event, data);
      }
      throw new Error("the stream has ended");
    } catch (error) {
      if (!signal.aborted) this.#fail(error);
    }
  }

  #take(event, data) {
    if (event === "hello") {
      this.on.hello(data);
      this.#tell();
    } else if (event === "death") {
      this.on.status("trouble", "the engine is being restarted");
    } else if (event === "view") {
      if (this.waiting.length >= MAX_WAITING) {
        this.waiting = [];
        this.overflowed = true;
      }
      if (!this.overflowed) this.waiting.push(data);
      else if (this.pace === "slow") this.open();
      if (this.pace === "live") while (this.waiting.length) this.#playOne();
    }
  }

  #playOne() {
    const view = this.waiting.shift();
    if (view) this.on.view(view);
    this.#tell();
  }

  #tell() {
    if (this.pace === "live") this.on.status("live", "live");
    else if (this.pace === "slow") {
      this.on.status("slow", this.behind > 1 ? `slow, ${this.behind} views behind` : "slow");
    }
  }

  #fail(error) {
    if (error instanceof ApiError && [400, 401, 403, 404].includes(error.status)) {
      this.on.refused(error);
      return;
    }
    const why = error instanceof ApiError ? error.message : "no connection";
    this.on.status("trouble", `${why}; trying again`);
    this.retry = setTimeout(() => this.open(), this.delay);
    this.delay = Math.min(this.delay * 2, MAX_RETRY_MS);
  }
}
