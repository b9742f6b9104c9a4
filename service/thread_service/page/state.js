/** How the node is, asked for again and again: shown in the corner, and in a banner when not all is well. */

import { traffic } from "./api.js";
import { byId, h } from "./dom.js";
import { clip } from "./text.js";

const CALM_MS = 5000;
const EAGER_MS = 1000;

let timer = 0;
let known = "asking";
let asked = false;

/** Start asking. `onReady` is called when the node can be asked again after it could not. */
export function watchState(onReady) {
  const look = async () => {
    clearTimeout(timer);
    asked = true;
    const before = known;
    const health = await probe();
    asked = false;
    show(health);
    if (known === "ready" && !["ready", "asking"].includes(before)) onReady();
    timer = setTimeout(look, known === "ready" ? CALM_MS : EAGER_MS);
  };
  traffic.addEventListener("silence", () => !asked && known !== "gone" && look());
  traffic.addEventListener("answer", () => !asked && known === "gone" && look());
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));
  byId("banner").addEventListener("click", (event) => event.target.matches("button") && look());
  look();
}

/** What /health says; null when nothing answers. */
async function probe() {
  try {
    const response = await fetch(new URL("health", document.baseURI), { cache: "no-store", signal: AbortSignal.timeout(8000) });
    return response.ok ? await response.json() : null;
  } catch {
    return null;
  }
}

function show(health) {
  const [state, word, sentence, share] = health === null ? gone() : of(health.embedder, health.engine);
  known = state;
  const corner = byId("state");
  corner.dataset.state = state;
  corner.querySelector("a").textContent = word;
  const banner = byId("banner");
  // The same sentence is not announced again each second.
  if (banner.dataset.said === `${sentence}${share ?? ""}`) return;
  banner.dataset.said = `${sentence}${share ?? ""}`;
  banner.dataset.state = state;
  banner.hidden = sentence === "";
  const bar = share === undefined ? null : h("progress", { max: 1, value: share, "aria-label": "Model" });
  const retry = state === "gone" && h("button", { type: "button" }, "Try now");
  banner.replaceChildren(h("p", {}, sentence), ...[bar, retry].filter(Boolean));
}

function gone() {
  return ["gone", "gone", `Nothing answers at ${location.host}. The node has stopped, or the connection is lost; it is asked again every second.`];
}

function of({ model, phase, fraction, error, index, indexedWith }, engine) {
  const name = clip(model, 120);
  if (phase === "failed") return ["failed", "model failed", `The model ${name} could not be loaded: ${clip(error ?? "no reason was given", 600)}. What is filed can be read; it cannot be searched.`];
  if (phase !== "ready") {
    const share = fraction === undefined ? "" : ` (${Math.round(fraction * 100)} %)`;
    return ["loading", `model ${phase}`, `The model ${name} is ${phase === "idle" ? "about to load" : phase}${share}. Searching and filing wait for it.`, fraction];
  }
  if (index === "mismatch") return ["mismatch", "other model", `This memory was indexed with ${clip(indexedWith ?? "another model", 200)}, and the node runs ${name}: it can be read and not searched.`];
  return ["ready", "ready", engine.error ? `Vectors are searched on the CPU, exactly and slower: ${clip(engine.error, 400)}` : ""];
}
