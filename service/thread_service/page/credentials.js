/** The API key and the stack's secret: asked for when the node wants them, kept for this tab only. */

import { byId } from "./dom.js";

const KINDS = {
  key: {
    title: "This node wants its API key",
    why: "It was started with --api-key or THREAD_API_KEY.",
    label: "API key",
    header: (value) => ["authorization", `Bearer ${value}`],
  },
  secret: {
    title: "This node wants its stack’s secret",
    why: "It belongs to a stack of programs that share a secret: AMBIENT_STACK_SECRET, or the file below RAO_HOME.",
    label: "Stack secret",
    header: (value) => ["x-ambient-secret", value],
  },
};

let asking = null;

/** The headers that every request carries. */
export function headers() {
  const known = Object.keys(KINDS).map((kind) => [kind, sessionStorage.getItem(`thread.${kind}`)]);
  return Object.fromEntries(known.filter(([, value]) => value).map(([kind, value]) => KINDS[kind].header(value)));
}

/** Ask the reader, once however many requests were refused. False: the dialog was closed without an answer. */
export function askFor(kind) {
  asking ??= dialog(kind).finally(() => {
    asking = null;
  });
  return asking;
}

function dialog(kind) {
  const { title, why, label } = KINDS[kind];
  const box = byId("credential");
  const field = byId("credential-value");
  const wrong = sessionStorage.getItem(`thread.${kind}`) !== null;
  byId("credential-title").textContent = title;
  byId("credential-why").textContent = wrong ? "It did not take the one given before." : why;
  byId("credential-label").textContent = label;
  field.value = "";
  return new Promise((resolve) => {
    const close = new AbortController();
    const { signal } = close;
    const end = (value) => {
      close.abort();
      box.close();
      resolve(value);
    };
    byId("credential-form").addEventListener("submit", (event) => {
      event.preventDefault();
      // A header cannot carry anything else.
      const value = field.value.trim().replace(/[^\x20-\x7e]/g, "");
      if (!value) return;
      sessionStorage.setItem(`thread.${kind}`, value);
      end(true);
    }, { signal });
    byId("credential-cancel").addEventListener("click", () => end(false), { signal });
    box.addEventListener("cancel", (event) => {
      event.preventDefault();
      end(false);
    }, { signal });
    box.showModal();
    field.focus();
  });
}
