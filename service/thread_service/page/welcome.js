/** What is shown before anything was asked: where to begin, or how to file the first text. */

import { ask } from "./api.js";
import { address, h, named } from "./dom.js";
import { owner } from "./owner.js";
import { entityLink } from "./passage.js";
import { counted } from "./text.js";

const BROWSED = 60;
const SHOWN = 14;

export async function welcome(options) {
  const thread = { owner_id: owner() };
  const [stats, first, graph] = await Promise.all([
    ask("v1/stats", {}, options),
    ask("v1/export", { ...thread, limit: 1 }, options),
    ask("v1/graph", { thread, limit: BROWSED }, options),
  ]);
  if (stats.document_count === 0) return emptyNode();
  if (!first.documents.length && !graph.entities.length) return emptyOwner(stats);
  // What somebody gave a kind says more than the commonest words.
  const entities = [...graph.entities].sort((a, b) => (a.kind === "concept") - (b.kind === "concept")).slice(0, SHOWN);
  return h("div", { class: "welcome" },
    h("h2", {}, "What is mentioned most"),
    h("ul", { class: "chips", "aria-label": "Entities mentioned most" }, ...entities.map((entity) => h("li", {}, entityLink(entity)))),
    h("p", { class: "quiet" }, `${counted(stats.document_count, "document")} of ${counted(stats.owner_count, "owner")} on this node; `,
      h("a", { href: address("graph") }, "walk the graph"), " or ", h("a", { href: address("library") }, "look through the library"), "."));
}

function emptyNode() {
  return h("div", { class: "welcome" },
    h("h2", {}, "Nothing is here yet"),
    h("p", {}, "File your first text: paste it or drop a file, and ask for it a second later."),
    h("p", {}, h("a", { class: "button", href: "#file" }, "File a text"), " ", h("a", { href: address("file", { example: "1" }) }, "or begin with an example")));
}

function emptyOwner(stats) {
  return h("div", { class: "welcome" },
    h("h2", {}, "Nothing of the owner ", named(owner(), 60), " is here"),
    h("p", {}, `The node holds ${counted(stats.document_count, "document")} of others. Give another owner at the top, or file a text for this one.`),
    h("p", {}, h("a", { class: "button", href: "#file" }, "File a text")));
}
