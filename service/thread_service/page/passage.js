/** One passage of an answer: its text, how near it is, where it comes from, what it is about, and what led to it. */

import { address, h, named } from "./dom.js";
import { highlighted } from "./highlight.js";
import { owner } from "./owner.js";
import { openDocument } from "./reader.js";
import { clip, printable } from "./text.js";

const TEXT_CHARS = 700;
const CHIPS = 10;
const EDGES = 3;

/** Distances are a sum over 16 blocks: that of unit vectors which have nothing in common is 16 × √(2/16). */
const UNRELATED = Math.sqrt(32);

/**
 * @param {{text: string, reference: Object, rank: number, question: string, trace: {ids: Set<string>, edges: Object[]},
 *   channels: Object<string, number|null>|null}} found
 */
export function passage({ text, reference, rank, question, trace, channels }) {
  return h("li", { class: "passage" },
    h("div", { class: "of" },
      h("h2", {}, h("button", { type: "button", class: "link", onclick: () => openDocument(reference.document_id) }, named(reference.name ?? reference.document_id))),
      h("p", { class: "from" }, ...origin(reference)),
      distance(reference.distance)),
    body(text, question),
    chips(reference.entities, trace.ids),
    ledBy(reference.entities, trace.edges),
    channels && h("p", { class: "channels" }, ...ranks(channels, rank)));
}

function origin(reference) {
  const ordinal = Number(reference.partition_id.slice(reference.document_id.length + 1));
  const parts = [
    reference.owner_id === owner().toLowerCase() ? null : h("span", {}, "filed by ", named(reference.owner_id, 40)),
    reference.group ? h("span", {}, "in ", named(reference.group.label || reference.group.id, 40)) : null,
    ordinal > 0 ? `part ${ordinal + 1}` : null,
    reference.media_type === "text" ? null : reference.media_type,
  ].filter(Boolean);
  return parts.flatMap((part, at) => (at ? [" · ", part] : [part]));
}

function distance(value) {
  const bar = h("span", { class: "nearness", "aria-hidden": "true" });
  bar.style.setProperty("--near", String(Math.max(0, Math.min(1, 1 - value / UNRELATED))));
  return h("p", { class: "distance", title: "Distance: lower is better" }, bar, h("span", { class: "unseen" }, "distance "), value.toFixed(2));
}

/** The text, clipped, with a button for the rest. Also what the graph shows of a passage. */
export function body(text, question) {
  const shown = h("p", { class: "text", dir: "auto" }, ...highlighted(clip(text, TEXT_CHARS), question));
  if (text.length <= TEXT_CHARS) return shown;
  const whole = h("button", { type: "button", class: "plain", onclick: () => {
    shown.replaceChildren(...highlighted(printable(text), question));
    whole.remove();
  } }, "Show all of it");
  return h("div", {}, shown, whole);
}

function chips(entities, led) {
  if (!entities.length) return null;
  // What the question itself led to comes first, then what somebody gave a kind.
  const place = (entity) => (led.has(entity.id) ? 0 : entity.kind === "concept" ? 2 : 1);
  const ordered = [...entities].sort((a, b) => place(a) - place(b));
  const list = h("ul", { class: "chips", "aria-label": "Entities" }, ...ordered.slice(0, CHIPS).map((entity) => chip(entity, led)));
  const rest = ordered.slice(CHIPS);
  if (rest.length) {
    const more = h("li", {}, h("button", { type: "button", class: "plain", onclick: () => {
      more.replaceWith(...rest.map((entity) => chip(entity, led)));
    } }, `${rest.length} more`));
    list.append(more);
  }
  return list;
}

function chip(entity, led) {
  return h("li", {}, entityLink(entity, led.has(entity.id) ? "chip led" : "chip"));
}

/** A link that walks to an entity. */
export function entityLink({ name, kind }, style = "chip") {
  return h("a", { class: style, href: address("graph", { name, kind }) }, named(name, 48), " ", h("small", {}, named(kind, 24)));
}

/** The relationships of the trace that have an end in this passage. */
function ledBy(entities, edges) {
  const names = new Set(entities.map((entity) => entity.name));
  const through = edges.filter((edge) => names.has(edge.subject) || names.has(edge.object)).slice(0, EDGES);
  if (!through.length) return null;
  return h("ul", { class: "led-by", "aria-label": "Relationships that led here" }, ...through.map((edge) => h("li", {}, ...sentence(edge))));
}

/** A relationship as a sentence. */
export function sentence({ subject, predicate, object }) {
  return [named(subject, 48), " ", h("i", {}, named(predicate, 48)), " ", named(object, 48)];
}

function ranks(channels, rank) {
  const alone = Object.entries(channels).map(([name, place]) => `${name} ${place === null ? "not found" : place}`);
  return [`Alone: ${alone.join(" · ")} · together ${rank}`];
}
