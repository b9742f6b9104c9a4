/** The picture of a part of the graph, drawn by Cytoscape. Whatever it shows is also in the list beside it. */

import cytoscape from "./vendor/cytoscape.min.mjs";
import { address, byId, h } from "./dom.js";
import { kindsOf } from "./kinds.js";
import { around, capacity, spiral, spread } from "./places.js";
import { label } from "./text.js";

const LABEL_CHARS = 28;
const LABELLED_EDGES = 20;
const LABELLED_WIDTH = 480;
const AROUND_MAX = 14;
const dark = matchMedia("(prefers-color-scheme: dark)");
const still = matchMedia("(prefers-reduced-motion: reduce)");

let chart = null;
let last = null;
let size = [0, 0];

byId("zoom-in").addEventListener("click", () => zoom(1.25));
byId("zoom-out").addEventListener("click", () => zoom(0.8));
byId("zoom-fit").addEventListener("click", () => chart?.viewport({ zoom: 1, pan: { x: 0, y: 0 } }));
dark.addEventListener("change", () => last && draw(...last));
new ResizeObserver(([{ contentRect }]) => {
  const [width, height] = [contentRect.width, contentRect.height];
  if (width && last && (width !== size[0] || height !== size[1])) draw(...last);
}).observe(byId("picture"));

/**
 * @param {import("./portion.js").Portion} portion
 * @param {string|null} focus the id of the entity in the middle
 */
export function draw(portion, focus) {
  last = [portion, focus];
  const box = byId("picture");
  const kinds = kindsOf(portion.entities);
  chart?.destroy();
  size = [box.clientWidth, box.clientHeight];
  chart = cytoscape({
    container: box,
    elements: elements(portion, focus, kinds),
    style: style(),
    layout: { name: "preset", fit: false },
    minZoom: 0.4,
    maxZoom: 3,
    boxSelectionEnabled: false,
  });
  place(portion, focus);
  chart.on("tap", "node", (event) => {
    location.hash = address("graph", { name: event.target.data("name"), kind: event.target.data("kind") });
  });
  chart.on("mouseover", "node", (event) => point(event.target.id()));
  chart.on("mouseout", "node", () => point(null));
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `Picture of ${portion.entities.length} entities and ${portion.edges.length} relationships; the list beside it holds the same.`);
  byId("legend").replaceChildren(...kinds.legend.map(([kind, place]) => h("span", { class: `kind kind-${place}` }, h("bdi", {}, label(kind, 24)))));
}

/** How many nodes there is room for. */
export function room() {
  return capacity(byId("picture").clientWidth, byId("picture").clientHeight);
}

/** Properties of a row that shows in the picture where its entity is. */
export function pointing(id) {
  return {
    onmouseenter: () => point(id),
    onmouseleave: () => point(null),
    onfocusin: () => point(id),
    onfocusout: () => point(null),
  };
}

/** Where the nodes are drawn, in pixels of the picture, by name. For tests that click as people do. */
export function whereabouts() {
  return Object.fromEntries(chart.nodes().map((node) => [node.data("name"), node.renderedPosition()]));
}

function point(id) {
  if (!chart) return;
  chart.elements().removeClass("pointed aside");
  if (id === null) return;
  const node = chart.getElementById(id);
  if (node.empty()) return;
  chart.elements().difference(node.closedNeighborhood()).addClass("aside");
  node.addClass("pointed");
}

function zoom(factor) {
  if (!chart) return;
  const level = chart.zoom() * factor;
  const at = { x: chart.width() / 2, y: chart.height() / 2 };
  if (still.matches) chart.zoom({ level, renderedPosition: at });
  else chart.animate({ zoom: { level, renderedPosition: at } }, { duration: 120 });
}

function place({ entities }, focus) {
  const ids = entities.map((entity) => entity.id);
  let places;
  if (focus !== null && ids.length <= AROUND_MAX) {
    places = around(focus, ids, ...size);
  } else {
    const begin = spiral(ids);
    chart.nodes().positions((node) => begin.get(node.id()));
    chart.layout({ name: "cose", animate: false, fit: false, randomize: false, nodeRepulsion: () => 90_000, idealEdgeLength: () => 70, nodeOverlap: 24, componentSpacing: 50, gravity: 0.6, numIter: 600 }).run();
    places = spread(new Map(chart.nodes().map((node) => [node.id(), node.position()])), ...size);
  }
  chart.nodes().positions((node) => places.get(node.id()));
  chart.viewport({ zoom: 1, pan: { x: 0, y: 0 } });
}

function elements({ entities, edges }, focus, kinds) {
  const most = Math.max(1, ...entities.map((entity) => entity.mention_count));
  const nodes = entities.map((entity) => ({
    group: "nodes",
    data: {
      id: entity.id,
      name: entity.name,
      kind: entity.kind,
      label: label(entity.name, LABEL_CHARS),
      colour: kinds.colour(entity.kind),
      size: entity.id === focus ? 30 : 11 + 13 * Math.sqrt(entity.mention_count / most),
    },
    classes: entity.id === focus ? "focus" : "",
  }));
  const crowded = focus === null || edges.length > LABELLED_EDGES || size[0] < LABELLED_WIDTH;
  return [...nodes, ...edges.map((edge) => ({
    group: "edges",
    data: { id: edge.id, source: edge.subject_id, target: edge.object_id, label: crowded ? "" : label(edge.predicate, LABEL_CHARS) },
  }))];
}

function style() {
  const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const font = getComputedStyle(document.body).fontFamily;
  return [
    { selector: "node", style: {
      width: "data(size)", height: "data(size)", "background-color": "data(colour)", "border-width": 0,
      label: "data(label)", color: of("--ink"), "font-family": font, "font-size": 11.5, "text-valign": "bottom", "text-margin-y": 4,
      "text-wrap": "wrap", "text-max-width": 92, "text-outline-color": of("--paper-sunk"), "text-outline-width": 2, "overlay-opacity": 0,
    } },
    { selector: "node.focus", style: { "border-width": 3, "border-color": of("--accent"), "font-size": 13, "font-weight": 600 } },
    { selector: "node.pointed", style: { "border-width": 3, "border-color": of("--accent") } },
    { selector: "edge", style: {
      width: 1.2, "line-color": of("--line-strong"), "target-arrow-color": of("--line-strong"), "target-arrow-shape": "triangle", "arrow-scale": 0.8,
      "curve-style": "bezier", label: "data(label)", color: of("--ink-quiet"), "font-family": font, "font-size": 11, "font-style": "italic",
      "text-rotation": "autorotate", "text-outline-color": of("--paper-sunk"), "text-outline-width": 2, "overlay-opacity": 0,
    } },
    { selector: ".aside", style: { opacity: 0.25 } },
  ];
}
