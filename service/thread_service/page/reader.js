/** One document, read back as it was filed. */

import { ask } from "./api.js";
import { byId, h, named, stepwise } from "./dom.js";
import { latest, line } from "./line.js";
import { owner } from "./owner.js";
import { body } from "./passage.js";
import { counted } from "./text.js";

const PARTS = 20;
const begin = latest();

byId("reader-close").addEventListener("click", () => byId("reader").close());
byId("reader").addEventListener("close", () => begin());

export async function openDocument(id) {
  const said = line(byId("reader-line"));
  const signal = begin();
  byId("reader-title").replaceChildren(named(id));
  byId("reader-text").replaceChildren();
  said.busy("Reading …");
  if (!byId("reader").open) byId("reader").showModal();
  try {
    const [found] = (await ask("v1/documents", { owner_id: owner(), document_ids: [id] }, { signal, onWait: said.busy })).documents;
    if (!found) {
      said.say("It is no longer here, or this owner may not read it.");
      return;
    }
    byId("reader-title").replaceChildren(named(found.name ?? found.id));
    const group = found.group_id ? ["in ", named(found.group_label || found.group_id, 40), ", "] : [];
    said.say(h("span", {}, "Filed by ", named(found.owner_id, 40), " ", ...group, filed(found.created_at), `, ${counted(found.texts.length, "part")}`));
    byId("reader-text").replaceChildren(stepwise(found.texts, PARTS, (text) => body(text, ""), h("div", {})));
  } catch (error) {
    said.failed(error, () => openDocument(id));
  }
}

/** A time of the node, as this reader's calendar has it. */
export function filed(timestamp) {
  const at = new Date(timestamp);
  return h("time", { datetime: timestamp }, at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }));
}
