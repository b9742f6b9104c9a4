/** A file as text, or an error that says why it is none. */

const BYTES_MAX = 32 * 2 ** 20;

/** @param {File} file */
export async function readText(file) {
  if (file.size > BYTES_MAX) throw new Error("It is larger than 32 MiB: file it over HTTP, in parts.");
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error("It is not text in UTF-8, or cannot be read.");
  }
  if (text.includes("\u0000")) throw new Error("It holds NUL characters: it is no text.");
  if (!text.trim()) throw new Error("It is empty.");
  return text;
}
