/** The view of the node itself: its model, what it holds, its queues, its memory. */

import { ask } from "./api.js";
import { byId, h } from "./dom.js";
import { latest, line } from "./line.js";
import { parse } from "./prometheus.js";
import { bytes, clip, count } from "./text.js";

const AGAIN_MS = 5000;
const said = line(byId("node-line"));
const begin = latest();

let timer = 0;

export async function open() {
  clearTimeout(timer);
  const signal = begin();
  if (!byId("facts").children.length) said.busy("Asking …");
  try {
    const options = { signal, onWait: said.busy };
    const [{ embedder, engine }, stats, page] = await Promise.all([ask("health", undefined, options), ask("v1/stats", {}, options), ask("metrics", undefined, options)]);
    byId("facts").replaceChildren(...facts(embedder, engine, stats, parse(page)));
    said.clear();
    timer = setTimeout(open, AGAIN_MS);
  } catch (error) {
    said.failed(error, open);
  }
}

export function close() {
  clearTimeout(timer);
  begin();
}

function facts(embedder, engine, stats, metrics) {
  return [
    block("Model", model(embedder)),
    block("Device", device(engine, metrics)),
    block("Holds", [
      ["Documents", count(stats.document_count)],
      ["Open to all owners", count(stats.available_document_count)],
      ["Groups", count(stats.group_count)],
      ["Owners", count(stats.owner_count)],
    ]),
    block("Queues", [
      ["Documents not searchable yet", number(metrics.sum("thread_pending_documents"))],
      ["Texts to embed", number(metrics.sum("thread_embedding_waiting_texts", { role: "document" }))],
      ["Questions to embed", number(metrics.sum("thread_embedding_waiting_texts", { role: "query" }))],
      ["Searches that wait", number(metrics.sum("thread_scan_waiting_requests"))],
      ["Documents to be read by an instruct model", number(metrics.sum("thread_extraction_documents", { state: "waiting" }))],
    ]),
    block("Memory and disk", [
      ["Process", size(metrics.sum("process_resident_memory_bytes"))],
      ["Vectors", size(metrics.sum("thread_table_vector_bytes"))],
      ["On the disk", size(metrics.sum("thread_disk_used_bytes"))],
      ["Free on the disk", size(metrics.sum("thread_disk_free_bytes"))],
    ]),
    block("Tables of vectors", tables(metrics)),
  ];
}

function model({ model: name, revision, vectorSpace, phase, index, indexedWith }) {
  return [
    ["Name", clip(name, 200)],
    ["Revision", revision ? clip(revision, 80) : null],
    ["Vector space", clip(vectorSpace, 200)],
    ["State", phase],
    ["Index", { matches: "of this model", mismatch: `of ${clip(indexedWith ?? "another model", 200)}`, unstamped: "of an unknown model" }[index] ?? null],
  ];
}

function device(engine, metrics) {
  const gpus = [...new Set(metrics.all("thread_gpu_memory_bytes").map(({ labels }) => labels.device))].map((name) => {
    const of = (state) => size(metrics.sum("thread_gpu_memory_bytes", { device: name, state }));
    return [`GPU ${name}`, `${of("used")} used, ${of("free")} free`];
  });
  return [
    ["Vectors are searched on", { cpu: "CPU", cuda: "CUDA" }[engine.device]],
    ["Not on the GPU because", engine.error ? clip(engine.error, 300) : null],
    ...gpus,
    ["CPU time", seconds(metrics.sum("process_cpu_seconds_total"))],
  ];
}

function tables(metrics) {
  return metrics.all("thread_table_rows").map(({ labels, value }) => {
    const { purpose, width } = labels;
    const state = metrics.all("thread_table_state").find((sample) => sample.value === 1 && sample.labels.purpose === purpose && sample.labels.width === width);
    return [`${purpose}, ${width} wide`, `${count(value)} rows${state ? `, ${state.labels.state}` : ""}`];
  });
}

function block(title, rows) {
  const known = rows.filter(([, value]) => value !== null);
  if (!known.length) return "";
  return h("section", {}, h("h2", {}, title), h("dl", {}, ...known.flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)])));
}

const number = (value) => (value === null ? null : count(value));
const size = (value) => (value === null ? null : bytes(value));
const seconds = (value) => (value === null ? null : `${count(Math.round(value))} s`);
