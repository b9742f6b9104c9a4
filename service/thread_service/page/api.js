/** Asking the node: one function, which knows keys, what to wait for, and when nothing answers. */

import { askFor, headers } from "./credentials.js";

const ATTEMPTS = 6;
const WAIT_SECONDS_MAX = 30;

/** The node refused: `message` is what it said, `status` the HTTP status. */
export class Refused extends Error {
  constructor(status, title, detail) {
    super(detail ? `${title}: ${detail}` : title);
    this.status = status;
  }
}

/** Nothing answered. */
export class Gone extends Error {
  constructor() {
    super("The node does not answer.");
  }
}

/** Told of every answer and every silence, by which the state of the node is known at once. */
export const traffic = new EventTarget();

/**
 * POST a body, or GET without one, and return the answer: JSON, or text where the node answers text.
 * A 429 or 503 with Retry-After is asked again as the node says; meanwhile `onWait` is told why.
 * @param {string} path relative to this page, such as "v1/search"
 * @param {Object=} body
 * @param {{signal?: AbortSignal, onWait?: (sentence: string) => void}} options
 */
export async function ask(path, body, { signal, onWait = () => {} } = {}) {
  for (let attempt = 1; ; attempt += 1) {
    const response = await send(path, body, signal);
    if (response.ok) {
      return response.headers.get("content-type")?.startsWith("application/json") ? response.json() : response.text();
    }
    const problem = await response.json().catch(() => ({}));
    const refused = new Refused(response.status, problem.title ?? `HTTP ${response.status}`, problem.detail);
    if (response.status === 401) {
      const wanted = response.headers.has("www-authenticate") ? "key" : "secret";
      if (await askFor(wanted)) continue;
      throw refused;
    }
    const after = Number(response.headers.get("retry-after"));
    if (![429, 503].includes(response.status) || !(after >= 0) || !response.headers.has("retry-after")) throw refused;
    if (attempt >= ATTEMPTS) throw refused;
    const seconds = Math.min(Math.max(after, 1), WAIT_SECONDS_MAX);
    onWait(`${refused.message} Asking again in ${seconds} s.`);
    await pause(seconds, signal);
  }
}

async function send(path, body, signal) {
  const request = { signal, headers: headers(), cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    request.method = "POST";
    request.body = JSON.stringify(body);
    request.headers["content-type"] = "application/json";
  }
  try {
    const response = await fetch(new URL(path, document.baseURI), request);
    traffic.dispatchEvent(new Event("answer"));
    return response;
  } catch (error) {
    if (signal?.aborted) throw error;
    traffic.dispatchEvent(new Event("silence"));
    throw new Gone();
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

/** Whether a question was given up because another one took its place. */
export function isAbort(error) {
  return error?.name === "AbortError";
}
