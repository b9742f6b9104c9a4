/** The page of metrics, in the text format of Prometheus, as values that can be asked for. */

const LINE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** @returns {{all: (name: string) => {labels: Object<string, string>, value: number}[], sum: (name: string, labels?: Object<string, string>) => number|null}} */
export function parse(page) {
  const samples = new Map();
  for (const row of page.split("\n")) {
    const found = LINE.exec(row);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map(([, key, value]) => [key, value]));
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  const all = (name) => samples.get(name) ?? [];
  return {
    all,
    /** Of all samples with these labels; null when there is none. */
    sum(name, labels = {}) {
      const fitting = all(name).filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value));
      return fitting.length ? fitting.reduce((total, sample) => total + sample.value, 0) : null;
    },
  };
}
