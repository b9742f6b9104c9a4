/** An entity in words: its neighbours, by what binds them, and the passages that mention it. The way to walk by key. */

import { ask } from "./api.js";
import { address, h, named, stepwise } from "./dom.js";
import { line } from "./line.js";
import { owner } from "./owner.js";
import { body } from "./passage.js";
import { otherEnd } from "./portion.js";
import { openDocument } from "./reader.js";
import { counted } from "./text.js";

const NEIGHBOURS = 15;
const DOCUMENTS = 4;

export function aboutEntity(answer, focus, picture, signal) {
  return h("div", {},
    h("h2", {}, named(focus.name)),
    h("p", { class: "quiet" }, named(focus.kind, 40), `, in ${counted(focus.document_ids.length, "document")}`),
    neighbours(answer, focus, picture),
    passages(focus, signal));
}

function neighbours({ entities, relationships }, focus, picture) {
  const byIds = new Map(entities.map((entity) => [entity.id, entity]));
  const bonds = relationships
    .map((edge) => ({ edge, other: byIds.get(otherEnd(edge, focus.id)) }))
    .filter(({ other }) => other)
    .sort((a, b) => b.edge.weight - a.edge.weight || b.other.mention_count - a.other.mention_count);
  if (!bonds.length) return h("p", { class: "quiet" }, "No relationship is known of it.");
  const row = ({ edge, other }) => {
    const link = h("a", { href: address("graph", { name: other.name, kind: other.kind }) }, named(other.name, 60));
    const predicate = h("i", {}, named(edge.predicate, 60));
    const parts = edge.subject_id === focus.id ? [predicate, " ", link] : [link, " ", predicate, " ", named(focus.name, 60)];
    return h("li", picture.pointing(other.id), ...parts, " ", h("small", {}, named(other.kind, 24)));
  };
  return h("div", {}, h("h3", {}, "Neighbours"), stepwise(bonds, NEIGHBOURS, row, h("ul", { class: "rows", "aria-label": "Neighbours" })));
}

/** The documents that list the entity, a few at a time, each by the first part that names it. */
function passages(focus, signal) {
  const ids = [...focus.document_ids];
  const list = h("ol", { class: "passages", "aria-label": "Passages" });
  const element = h("p", { class: "line", role: "status" });
  const more = h("button", { type: "button", class: "plain", hidden: true, onclick: () => next() });
  const said = line(element);
  const next = async () => {
    const asked = ids.slice(0, DOCUMENTS);
    said.busy("Reading …");
    try {
      const { documents } = await ask("v1/documents", { owner_id: owner(), document_ids: asked }, { signal, onWait: said.busy });
      list.append(...documents.map((found) => shown(found, focus.name)));
      ids.splice(0, asked.length);
      said.clear();
    } catch (error) {
      said.failed(error, next);
    }
    more.hidden = !ids.length;
    more.textContent = `Show more (${ids.length})`;
  };
  if (ids.length) next();
  return h("div", {}, h("h3", {}, "Passages"), list, more, element);
}

function shown(found, name) {
  const wanted = name.toLowerCase();
  const text = found.texts.find((part) => part.toLowerCase().includes(wanted)) ?? found.texts[0] ?? "";
  return h("li", { class: "passage" },
    h("h4", {}, h("button", { type: "button", class: "link", onclick: () => openDocument(found.id) }, named(found.name ?? found.id, 60))),
    body(text, name));
}
