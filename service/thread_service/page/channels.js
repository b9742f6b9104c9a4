/** Where each channel alone ranks the passages of an answer: the same question with the others switched off. */

import { ask } from "./api.js";

const DEPTH = 100;
const CHANNELS = {
  vectors: { graph_mode: "off", lexical: false },
  "with words": { graph_mode: "off", lexical: true },
  "with graph": { graph_mode: "boost", lexical: false },
};

/** @returns {Promise<Map<string, Object<string, number|null>>>} by the id of the passage; null: not among the first 100 */
export async function ranksAlone(body, partitionIds, options) {
  const names = Object.keys(CHANNELS);
  const answers = await Promise.all(names.map((name) =>
    ask("v1/search", { ...body, thread: { ...body.thread, ...CHANNELS[name], top_k: DEPTH } }, options)));
  const places = answers.map(({ references }) => new Map(references.map((reference, at) => [reference.partition_id, at + 1])));
  return new Map(partitionIds.map((id) => [id, Object.fromEntries(names.map((name, at) => [name, places[at].get(id) ?? null]))]));
}
