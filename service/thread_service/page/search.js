/** The view that asks: passages, the entities behind them, and what led there. */

import { ask } from "./api.js";
import { ranksAlone } from "./channels.js";
import { address, byId, h } from "./dom.js";
import { latest, line } from "./line.js";
import { owner } from "./owner.js";
import { entityLink, passage, sentence } from "./passage.js";
import { count, counted } from "./text.js";
import { welcome } from "./welcome.js";

const TRACE_EDGES = 12;
const said = line(byId("search-line"));
const begin = latest();

byId("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = address("search", { q: byId("query").value.trim() });
  if (location.hash === wanted) open(new URLSearchParams(wanted.split("?")[1]));
  else location.hash = wanted;
});

/** @param {URLSearchParams} parameters `q`: the question */
export async function open(parameters) {
  const question = parameters.get("q") ?? "";
  const signal = begin();
  byId("query").value = question;
  empty();
  if (!question.trim()) {
    byId("query").focus({ preventScroll: true });
    said.clear();
    try {
      byId("search-trace").replaceChildren(await welcome({ signal, onWait: said.busy }));
    } catch (error) {
      said.failed(error, () => open(parameters));
    }
    return;
  }
  said.busy("Searching …");
  try {
    const body = request(question);
    const started = performance.now();
    const answer = await ask("v1/search", body, { signal, onWait: said.busy });
    const took = Math.round(performance.now() - started);
    const alone = byId("channels").checked
      ? await ranksAlone(body, answer.references.map((reference) => reference.partition_id), { signal, onWait: said.busy })
      : null;
    show(question, answer, alone, took);
  } catch (error) {
    said.failed(error, () => open(parameters));
  }
}

function empty() {
  byId("search-trace").replaceChildren();
  byId("passages").replaceChildren();
}

function request(question) {
  const choice = (id) => byId(id).value || undefined;
  const lexical = choice("lexical");
  return {
    query: question,
    thread: {
      owner_id: owner(),
      top_k: Math.min(100, Math.max(1, Math.trunc(Number(byId("top-k").value)) || 10)),
      graph_mode: choice("graph-mode"),
      lexical: lexical && lexical === "true",
      scope: choice("scope"),
      media_type: choice("media-type"),
    },
  };
}

function show(question, { texts, references, graph }, alone, took) {
  const trace = { ids: new Set(graph?.entities.map((entity) => entity.id)), edges: graph?.relationships ?? [] };
  byId("passages").replaceChildren(...texts.map((text, at) => passage({
    text,
    reference: references[at],
    rank: at + 1,
    question,
    trace,
    channels: alone?.get(references[at].partition_id) ?? null,
  })));
  if (!texts.length) {
    said.say(`Nothing was found for the owner “${owner()}”. Documents are found by who filed them; the owner is asked for at the top.`);
    return;
  }
  said.say(`${counted(texts.length, "passage")} in ${count(took)} ms`);
  if (graph) byId("search-trace").replaceChildren(traced(graph));
}

/** What the graph did, folded away. */
function traced({ entities, relationships, expanded_documents: expanded }) {
  const what = [counted(entities.length, "entity", "entities"), counted(relationships.length, "relationship")];
  if (expanded) what.push(`${counted(expanded, "document")} found by nothing else`);
  return h("details", { class: "trace" },
    h("summary", {}, `Through the graph: ${what.join(", ")}`),
    h("ul", { class: "chips", "aria-label": "Entities the question led to" }, ...entities.slice(0, 40).map((entity) => h("li", {}, entityLink(entity, "chip led")))),
    h("ul", { class: "led-by", "aria-label": "Relationships the question led to" }, ...relationships.slice(0, TRACE_EDGES).map((edge) => h("li", {}, ...sentence(edge)))));
}
