/** Elements made from data. Text only ever becomes text nodes: no string is parsed as markup anywhere on this page. */

import { clip } from "./text.js";

export const NAME_CHARS = 80;

/** The element of an id that the page certainly has. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * An element with properties (`class`, `data-…`, `aria-…` and `on…` included) and children; null children are left out.
 * @param {string} tag
 * @param {Object<string, *>} properties
 * @param {...(Node|string|number|null|undefined|false)} children
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** A name that somebody gave to something: clipped, and with a direction of its own. */
export function named(text, most = NAME_CHARS) {
  const cut = text.length > most;
  return h("bdi", { title: cut ? clip(text, 400) : null }, clip(text, most) || "(blank)");
}

/** An address on this page, such as #graph?name=Ada. */
export function address(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return `#${view}${query ? `?${query}` : ""}`;
}

/** A list that shows `step` items and a button for the next ones. */
export function stepwise(items, step, render, list) {
  const more = h("button", { type: "button", class: "plain" }, "Show more");
  let shown = 0;
  const next = () => {
    const first = shown;
    list.append(...items.slice(shown, shown + step).map(render));
    shown = Math.min(items.length, shown + step);
    more.hidden = shown === items.length;
    more.textContent = `Show more (${items.length - shown})`;
    if (first > 0) list.children[first]?.querySelector("a, button")?.focus();
  };
  more.addEventListener("click", next);
  next();
  return h("div", {}, list, more);
}
