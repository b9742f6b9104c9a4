/** What is filed: groups by owner with their documents, and all documents of the owner, page by page. */

import { ask } from "./api.js";
import { byId, h, named, stepwise } from "./dom.js";
import { latest, line } from "./line.js";
import { owner } from "./owner.js";
import { filed, openDocument } from "./reader.js";
import { counted } from "./text.js";

const GROUPS = 50;
const DOCUMENTS = 25;
const said = line(byId("library-line"));
const begin = latest();

let signal = begin();
let after = "";

byId("available").addEventListener("change", () => open());
byId("more-documents").addEventListener("click", () => documents());

export async function open() {
  signal = begin();
  after = "";
  byId("groups").replaceChildren();
  byId("documents").replaceChildren();
  byId("more-documents").hidden = true;
  said.busy("Reading …");
  try {
    await groups("");
    await documents();
  } catch (error) {
    said.failed(error, open);
  }
}

async function groups(afterId) {
  const body = { owner_id: owner(), include_available: byId("available").checked, after_id: afterId || undefined, limit: GROUPS };
  const answer = await ask("v1/library", body, { signal, onWait: said.busy });
  for (const group of answer.groups) section(group.owner_id).append(groupRow(group));
  if (answer.has_more && answer.groups.length) {
    const more = h("button", { type: "button", class: "plain", onclick: () => {
      more.remove();
      groups(answer.groups.at(-1).id).catch((error) => said.failed(error, open));
    } }, "Show more groups");
    byId("groups").append(more);
  }
}

/** The part of the page for the groups of one owner. */
function section(ownerId) {
  const known = [...byId("groups").children].find((part) => part.dataset.owner === ownerId);
  if (known) return known;
  const made = h("section", { "data-owner": ownerId }, h("h2", {}, "Groups of ", named(ownerId, 60)));
  byId("groups").append(made);
  return made;
}

function groupRow(group) {
  const about = [counted(group.documents.length, "document"), group.access === "available" ? "open to all owners" : "restricted"].join(", ");
  const tags = group.metadata.tags.slice(0, 12);
  return h("details", { class: "group" },
    h("summary", {}, named(group.label || group.id), " ", h("small", {}, about)),
    group.metadata.description && h("p", { dir: "auto" }, named(group.metadata.description, 500)),
    tags.length > 0 && h("p", { class: "quiet" }, ...tags.flatMap((tag, at) => [at ? ", " : "", named(tag, 40)])),
    stepwise(group.documents, DOCUMENTS, documentRow, h("ul", { class: "rows" })));
}

async function documents() {
  byId("more-documents").disabled = true;
  try {
    const answer = await ask("v1/export", { owner_id: owner(), after_id: after || undefined, limit: DOCUMENTS }, { signal, onWait: said.busy });
    const list = byId("documents");
    const first = list.children.length;
    list.append(...answer.documents.map(documentRow));
    after = answer.documents.at(-1)?.id ?? after;
    byId("more-documents").hidden = !answer.has_more;
    if (first) list.children[first]?.querySelector("button")?.focus();
    if (list.children.length) said.clear();
    else said.say(h("span", {}, "Nothing of ", named(owner(), 60), " is filed here. ", h("a", { href: "#file" }, "File a text"), "."));
  } catch (error) {
    said.failed(error, () => documents());
  }
  byId("more-documents").disabled = false;
}

function documentRow(document) {
  return h("li", {}, h("button", { type: "button", class: "link", onclick: () => openDocument(document.id) }, named(document.name ?? document.id)), " ", h("small", {}, filed(document.created_at)));
}
