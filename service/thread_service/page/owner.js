/** Whose memory is looked at. Remembered by the browser; never part of an address that is handed on. */

import { byId } from "./dom.js";

const KEPT = "thread.owner";
const DEFAULT = "me";

let current = localStorage.getItem(KEPT) ?? DEFAULT;

export function owner() {
  return current;
}

/** Show the field, and call `onChange` when somebody else is asked about. */
export function watchOwner(onChange) {
  const field = byId("owner");
  field.value = current;
  const take = () => {
    const given = field.value.trim();
    if (given === current) return;
    current = given;
    localStorage.setItem(KEPT, current);
    onChange();
  };
  field.addEventListener("change", take);
  byId("owner-form").addEventListener("submit", (event) => {
    event.preventDefault();
    take();
  });
}
