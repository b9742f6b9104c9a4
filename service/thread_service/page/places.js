/** Where the nodes of a picture go, in pixels of its box, so that letters have the same size in every picture. */

const PADDING = { x: 64, top: 44, bottom: 56 };
/** What a node takes up with its name below it. */
const NAME = { width: 92, height: 46 };
const ROUNDS = 120;

/** How many nodes there is room for. */
export function capacity(width, height) {
  return Math.floor((width * height) / (2.2 * NAME.width * NAME.height));
}

/** The middle of a walk, with everything else around it: for few nodes, whose edges can then be read. */
export function around(focus, ids, width, height) {
  const middle = { x: width / 2, y: (height + PADDING.top - PADDING.bottom) / 2 };
  const reach = { x: width / 2 - PADDING.x * 1.25, y: (height - PADDING.top - PADDING.bottom) / 2 };
  const others = ids.filter((id) => id !== focus);
  const step = (2 * Math.PI) / others.length;
  // Half a step off the vertical: names are written below, where an edge from above would cross them.
  const ring = others.map((_, at) => ({
    x: middle.x + reach.x * Math.sin((at + 0.5) * step),
    y: middle.y - reach.y * Math.cos((at + 0.5) * step),
  }));
  apart(ring, inside(width, height));
  return new Map([[focus, middle], ...others.map((id, at) => [id, ring[at]])]);
}

/** Places stretched so that they fill the box, half by their measure and half by their order, and moved apart. */
export function spread(places, width, height) {
  const fractions = (axis) => {
    const values = [...places.values()].map((place) => place[axis]);
    const order = [...values].sort((a, b) => a - b);
    const [low, high] = [order[0], order.at(-1)];
    const last = Math.max(1, values.length - 1);
    return values.map((value) => (high > low ? ((value - low) / (high - low) + order.indexOf(value) / last) / 2 : 0.5));
  };
  const room = { x: width - 2 * PADDING.x, y: height - PADDING.top - PADDING.bottom };
  const down = fractions("y");
  const boxes = fractions("x").map((across, at) => ({ x: PADDING.x + across * room.x, y: PADDING.top + down[at] * room.y }));
  apart(boxes, inside(width, height));
  return new Map([...places.keys()].map((id, at) => [id, boxes[at]]));
}

function inside(width, height) {
  return (box) => {
    box.x = Math.min(Math.max(box.x, PADDING.x), width - PADDING.x);
    box.y = Math.min(Math.max(box.y, PADDING.top), height - PADDING.bottom);
  };
}

/** Move boxes of a node and its name until none covers another, or the rounds are over. */
function apart(boxes, keepInside) {
  for (let round = 0; round < ROUNDS; round += 1) {
    let moved = false;
    for (const [at, a] of boxes.entries()) {
      for (const b of boxes.slice(at + 1)) {
        const [x, y] = [NAME.width - Math.abs(a.x - b.x), NAME.height - Math.abs(a.y - b.y)];
        if (x <= 0 || y <= 0) continue;
        const axis = x / NAME.width < y / NAME.height ? "x" : "y";
        const push = ((axis === "x" ? x : y) / 2 + 0.5) * (a[axis] < b[axis] ? -1 : 1);
        a[axis] += push;
        b[axis] -= push;
        moved = true;
      }
    }
    boxes.forEach(keepInside);
    if (!moved) return;
  }
}

/** On a spiral from the middle: where a layout begins, so that the same part is always drawn in the same way. */
export function spiral(ids) {
  return new Map(ids.map((id, at) => [id, { x: 40 * Math.sqrt(at) * Math.cos(2.4 * at), y: 40 * Math.sqrt(at) * Math.sin(2.4 * at) }]));
}
