/** Colours of kinds: the commonest of a picture have one each, the others share a grey. */

const COLOURS = 6;

/** @returns {{colour: (kind: string) => string, legend: [string, number][]}} */
export function kindsOf(entities) {
  const counts = new Map();
  for (const { kind } of entities) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const ordered = [...counts].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1)).map(([kind]) => kind);
  const places = new Map(ordered.slice(0, COLOURS).map((kind, at) => [kind, at]));
  const style = getComputedStyle(document.documentElement);
  const colours = Array.from({ length: COLOURS }, (_, at) => style.getPropertyValue(`--kind-${at}`).trim());
  const grey = style.getPropertyValue("--kind-other").trim();
  const legend = [...places];
  if (ordered.length > COLOURS) legend.push(["other kinds", "other"]);
  return { colour: (kind) => (places.has(kind) ? colours[places.get(kind)] : grey), legend };
}
