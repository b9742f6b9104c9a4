/** Which part of an answer is drawn: a picture of more than a few dozen entities shows nothing. */

const DRAWN_MIN = 10;
const DRAWN_MAX = 40;

/** @typedef {{entities: Object[], edges: Object[]}} Portion entities of /v1/graph, and the relationships among them */

/** Of what is mentioned most: entities with an edge among them first, each group in the order of the answer. `room`: how many nodes fit. */
export function mostConnected({ entities, relationships }, room) {
  const known = new Set(entities.map((entity) => entity.id));
  const among = relationships.filter((edge) => known.has(edge.subject_id) && known.has(edge.object_id));
  const linked = new Set(among.flatMap((edge) => (edge.subject_id === edge.object_id ? [] : [edge.subject_id, edge.object_id])));
  const ordered = [...entities].sort((a, b) => linked.has(b.id) - linked.has(a.id));
  return within(ordered.slice(0, most(room)), relationships);
}

/** Of an entity and its neighbours: the neighbours with the heaviest edges to it, then those mentioned most. */
export function drawn({ entities, relationships }, focus, room) {
  const weights = new Map();
  for (const edge of relationships) {
    const other = otherEnd(edge, focus.id);
    if (other) weights.set(other, (weights.get(other) ?? 0) + edge.weight);
  }
  const rest = entities.filter((entity) => entity.id !== focus.id);
  rest.sort((a, b) => (weights.get(b.id) ?? 0) - (weights.get(a.id) ?? 0) || b.mention_count - a.mention_count);
  return within([focus, ...rest.slice(0, most(room) - 1)], relationships);
}

/** The id at the other end of an edge from `id`; null for an edge that does not touch it, or only it. */
export function otherEnd(edge, id) {
  if (edge.subject_id === edge.object_id) return null;
  if (edge.subject_id === id) return edge.object_id;
  return edge.object_id === id ? edge.subject_id : null;
}

function most(room) {
  return Math.min(Math.max(room, DRAWN_MIN), DRAWN_MAX);
}

function within(entities, relationships) {
  const known = new Set(entities.map((entity) => entity.id));
  return { entities, edges: relationships.filter((edge) => known.has(edge.subject_id) && known.has(edge.object_id)) };
}
