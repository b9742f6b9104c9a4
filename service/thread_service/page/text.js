/** Strings and numbers as they are shown. Whatever is in a text, it is clipped and made visible here, never run. */

const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;
const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

const whole = new Intl.NumberFormat("en-GB");

/** Control characters as their pictures, so that a NUL is seen. */
export function printable(text) {
  return text.replace(CONTROLS, (c) => (c === "\u007f" ? "\u2421" : String.fromCharCode(0x2400 + c.charCodeAt(0))));
}

/** At most `most` characters, never half of a surrogate pair, with an ellipsis in the place of what was cut. */
export function clip(text, most) {
  if (text.length <= most) return printable(text);
  const end = /[\ud800-\udbff]/.test(text[most - 1]) ? most - 1 : most;
  return printable(text.slice(0, end)) + "…";
}

/** One line for a canvas, where nothing isolates what runs from right to left. */
export function label(text, most) {
  return clip(text.replace(BIDI, "").replace(/\s+/g, " ").trim() || "(blank)", most);
}

/** 3112 → "3,112". */
export function count(number) {
  return whole.format(number);
}

/** (1, "document") → "1 document"; (3, "entity", "entities") → "3 entities". */
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Bytes with a unit and three digits at most. */
export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (number >= 1000 && place < units.length - 1) {
    number /= 1024;
    place += 1;
  }
  return `${number >= 100 || place === 0 ? Math.round(number) : number.toPrecision(3)} ${units[place]}`;
}
