/** Filing by paste or by drop: each document is first safe on the disk, then searchable, and both are shown. */

import { ask } from "./api.js";
import { address, byId, h, named } from "./dom.js";
import { owner } from "./owner.js";
import { readText } from "./read_text.js";
import { clip } from "./text.js";

const EXAMPLE = {
  name: "The Tidal Ledger",
  text: "Ada Quill keeps the Tidal Ledger in the harbour office of Port Selwyn. It was begun in 1841 by Orrin Vale, who wrote down every tide for forty years and missed two.",
};
const STEPS = { reading: 0, sending: 1, kept: 2, searchable: 3 };

let settling = Promise.resolve();

byId("file-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = byId("text").value;
  if (!text.trim()) {
    byId("text").focus();
    return;
  }
  file({ name: byId("document-name").value.trim(), text: async () => text });
  byId("text").value = "";
  byId("document-name").value = "";
});
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("file-form").requestSubmit();
});
byId("files").addEventListener("change", (event) => {
  fileAll([...event.target.files]);
  event.target.value = "";
});
const drop = byId("drop");
for (const [kind, over] of [["dragenter", true], ["dragover", true], ["dragleave", false], ["drop", false]]) {
  drop.addEventListener(kind, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    drop.classList.toggle("over", over);
    if (kind === "drop") fileAll([...event.dataTransfer.files]);
  });
}

/** @param {URLSearchParams} parameters `example`: fill in a text to begin with */
export function open(parameters) {
  if (parameters.has("example") && !byId("text").value) {
    byId("text").value = EXAMPLE.text;
    byId("document-name").value = EXAMPLE.name;
  }
}

async function fileAll(files) {
  for (const each of files) await file({ name: each.name, text: () => readText(each) });
}

/** Returns once the document is safe; that it is searchable is shown later. */
async function file({ name, text }) {
  const job = row(name);
  try {
    job.show("reading", "reading");
    const body = deposit(name, await text());
    job.show("sending", "sending");
    const [first] = (await ask("v1/batch/embeddings", body, { onWait: job.wait })).documents;
    if (first.outcome === "failed") throw new Error("There is nothing in it that can be searched.");
    job.show("kept", "safe on the disk, waiting to be searchable");
    settling = settling.then(() => settle(job, body, first));
  } catch (error) {
    job.failed(error);
  }
}

/** The same deposit again is already there; it is answered when what was filed before can be searched. */
async function settle(job, body, first) {
  try {
    const [document] = (await ask("v1/batch/embeddings", { ...body, wait: true }, { onWait: job.wait })).documents;
    if (document.outcome === "failed") throw new Error("The model could give no vectors for it.");
    job.show("searchable", { skipped: "was here already, and is searchable", linked: "was here already, and is in the group now" }[first.outcome] ?? "searchable");
  } catch (error) {
    job.failed(error);
  }
}

function deposit(name, text) {
  const group = byId("group").value.trim();
  return { inputs: [text], names: [name || null], sanitize: true, thread: { owner_id: owner(), group: group || undefined } };
}

function row(name) {
  const words = h("span", { class: "words" });
  const bar = h("progress", { max: STEPS.searchable, value: 0, "aria-label": "Progress" });
  const element = h("li", {}, h("strong", {}, named(name || "Pasted text", 60)), bar, words);
  byId("jobs").prepend(element);
  const say = (state, sentence) => {
    element.dataset.state = state;
    words.replaceChildren(sentence);
  };
  return {
    show(state, sentence) {
      bar.value = STEPS[state];
      say(state, sentence);
      if (state === "searchable") words.append(" · ", h("a", { href: address("search") }, "search"));
    },
    wait: (sentence) => say("waiting", clip(sentence, 300)),
    failed: (error) => {
      bar.value = 0;
      say("failed", clip(error.message, 600));
    },
  };
}
