/** The line of a view that says what is going on: asking, waiting, done, or what went wrong. */

import { Gone, isAbort } from "./api.js";
import { h } from "./dom.js";
import { clip } from "./text.js";

export function line(element) {
  const say = (sentence, state = "") => {
    element.dataset.state = state;
    element.replaceChildren(sentence);
  };
  return {
    say,
    busy: (sentence) => say(sentence, "busy"),
    clear: () => {
      element.dataset.state = "";
      element.replaceChildren();
    },
    /** Show a failure, with a button to try again; a question that was given up is no failure. */
    failed(error, again) {
      if (isAbort(error)) return;
      element.dataset.state = "failed";
      element.replaceChildren(clip(error.message, 600), " ", h("button", { type: "button", class: "plain", onclick: again }, "Try again"));
      if (!(error instanceof Gone) && error.status === undefined) console.error(error);
    },
  };
}

/** Runs one question at a time: a new one gives up the one before. */
export function latest() {
  let current = new AbortController();
  return () => {
    current.abort();
    current = new AbortController();
    return current.signal;
  };
}
