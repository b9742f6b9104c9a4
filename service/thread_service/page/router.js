/** Which view is shown, as the address says: #search?q=…, #graph?name=…&kind=…, #library, #file, #node. */

import { byId } from "./dom.js";

/**
 * @param {Object<string, {open: (parameters: URLSearchParams) => void, close?: () => void}>} views by name
 * @returns {() => void} opens the view of the address anew
 */
export function route(views, first) {
  let shown = null;
  const open = () => {
    const [name, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
    const view = Object.hasOwn(views, name) ? name : first;
    if (shown !== null && shown !== view) views[shown].close?.();
    for (const other of Object.keys(views)) byId(`view-${other}`).hidden = other !== view;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${byId(`title-${view}`).textContent} · Thread`;
    if (shown !== null && shown !== view) byId("main").focus({ preventScroll: true });
    shown = view;
    views[view].open(new URLSearchParams(query));
  };
  addEventListener("hashchange", open);
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  open();
  return open;
}
