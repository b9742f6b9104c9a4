/** The view in which one walks: what is mentioned most, or one entity with its neighbours and its passages. */

import { ask } from "./api.js";
import { aboutEntity } from "./about_entity.js";
import { address, byId, h, named, stepwise } from "./dom.js";
import { latest, line } from "./line.js";
import { owner } from "./owner.js";
import { drawn, mostConnected } from "./portion.js";
import { count, counted } from "./text.js";

const BROWSED = 400;
const LISTED = 20;
/** Entities that the node answers around one, at most. */
const REACHED = 2000;
const said = line(byId("graph-line"));
const begin = latest();

byId("find-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = byId("find").value.trim();
  location.hash = address("graph", { name });
});

/** @param {URLSearchParams} parameters `name` and `kind` of an entity; without them, what is mentioned most */
export async function open(parameters) {
  const name = parameters.get("name") ?? "";
  const kind = parameters.get("kind") ?? "";
  const signal = begin();
  byId("find").value = name;
  said.busy("Looking …");
  try {
    const thread = { owner_id: owner() };
    const body = name
      ? { thread, entity: name, kinds: kind ? [kind] : undefined, hops: 1, limit: 1 }
      : { thread, limit: BROWSED };
    // The library that draws is a large file: it comes while the node is asked.
    const [answer, picture] = await Promise.all([ask("v1/graph", body, { signal, onWait: said.busy }), import("./picture.js")]);
    signal.throwIfAborted();
    if (!answer.entities.length) nothing(name, answer, picture);
    else if (name) walkTo(answer, picture, signal);
    else browse(answer, picture);
  } catch (error) {
    said.failed(error, () => open(parameters));
  }
}

function nothing(name, answer, picture) {
  picture.draw({ entities: [], edges: [] }, null);
  byId("beside").replaceChildren();
  if (name) said.say(h("span", {}, "No entity is called ", named(name, 60), `, among the ${counted(answer.stats.entity_count, "entity", "entities")} that this owner sees.`));
  else said.say(h("span", {}, "No entities yet: they come with the texts that are filed. ", h("a", { href: "#file" }, "File a text"), "."));
}

function browse(answer, picture) {
  const part = mostConnected(answer, picture.room());
  picture.draw(part, null);
  const all = Math.max(answer.stats.entity_count, part.entities.length);
  said.say(`${count(part.entities.length)} of ${counted(all, "entity", "entities")} shown: those mentioned most, connected ones first`);
  const list = h("ul", { class: "rows", "aria-label": "Entities shown" });
  byId("beside").replaceChildren(h("h2", {}, "Shown"), stepwise(part.entities, LISTED, (entity) => h("li", picture.pointing(entity.id),
    h("a", { href: address("graph", entity) }, named(entity.name, 60)), " ", h("small", {}, named(entity.kind, 24), ` · ${count(entity.mention_count)}`)), list));
}

function walkTo(answer, picture, signal) {
  const [focus] = answer.entities;
  const part = drawn(answer, focus, picture.room());
  picture.draw(part, focus.id);
  const near = answer.entities.length - 1;
  const all = `${near >= REACHED - 1 ? "at least " : ""}${counted(near, "neighbour")}`;
  const shown = part.entities.length - 1;
  said.say(h("span", {}, named(focus.name, 60), ` and ${near === shown ? "" : `${count(shown)} of `}${all} shown, of ${counted(answer.stats.entity_count, "entity", "entities")}`));
  byId("beside").replaceChildren(aboutEntity(answer, focus, picture, signal));
}
