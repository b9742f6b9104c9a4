/** The words of a question, marked in a text. */

import { h } from "./dom.js";

const WORD = /[\p{L}\p{N}][\p{L}\p{N}'’-]{2,}/gu;
const COMMON = new Set("and are but can did does for from had has have her his how its not that the their them they this was were what when where which who whom whose why will with you your".split(" "));
const WORDS_MAX = 32;

/** Text nodes and marks that together are `text`. */
export function highlighted(text, question) {
  const asked = (question.slice(0, 2000).toLowerCase().match(WORD) ?? []).filter((word) => !COMMON.has(word));
  const wanted = new Set(asked.slice(0, WORDS_MAX));
  if (!wanted.size) return [text];
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(WORD)) {
    if (!wanted.has(found[0].toLowerCase())) continue;
    parts.push(text.slice(end, found.index), h("mark", {}, found[0]));
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
}
