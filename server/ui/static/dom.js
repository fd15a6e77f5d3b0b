// Small things that every part of the page needs. Text only ever enters the page as text nodes.

/** An element with attributes (functions become listeners) and children, strings among them. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name in made && typeof value === "boolean") made[name] = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function seconds(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60000) return `${(milliseconds / 1000).toFixed(1)} s`;
  return `${Math.floor(milliseconds / 60000)} min ${Math.round((milliseconds % 60000) / 1000)} s`;
}

/** What tells requests apart for a person: some of the id, and which prompt of its call it is. */
export function shortId(requestId) {
  const [, id, index] = /([^-]*)-(\d+)$/.exec(requestId) ?? [null, requestId, "0"];
  return id.slice(0, 4) + (index === "0" ? "" : `.${index}`);
}

/** Radio buttons made of buttons: one is checked, arrow keys move, `onChange` gets its value. */
export function segments(group, attribute, onChange) {
  const buttons = [...group.querySelectorAll("button")];
  const choose = (chosen) => {
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(button === chosen));
      button.tabIndex = button === chosen ? 0 : -1;
    }
    onChange(chosen.dataset[attribute]);
  };
  for (const [index, button] of buttons.entries()) {
    button.tabIndex = button.getAttribute("aria-checked") === "true" ? 0 : -1;
    button.addEventListener("click", () => choose(button));
    button.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const next = buttons[(index + by + buttons.length) % buttons.length];
      choose(next);
      next.focus();
    });
  }
  return (value) => choose(buttons.find((button) => button.dataset[attribute] === value));
}

/** Colours of the theme, for canvases, each as rgb(r, g, b). */
export function themeColours() {
  const names = ["free", "cached", "owned", "filling", "shared", "shared-many", "copied", "prefill",
    "decode", "preempted", "ink", "ink-2", "panel", "line", "on-shared"];
  // Only as the colour of an element is `light-dark()` resolved.
  const probe = document.body.appendChild(element("i"));
  const colours = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(colours);
}

/** Sizes a canvas in CSS pixels and returns its context, scaled for the screen. */
export function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
