"""The tables of `docs/benchmarks.md`, a function each: results as the benchmarks wrote them, to lines of Markdown.

`measured.py` says which results each takes and what stands above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import plots
from plots import Results


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table; every column but the first is numbers."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return lines + [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]


def retrieval(*sets: Results) -> list[str]:
    channels = plots.CHANNELS
    rows = []
    for results in sets:
        name = f"{plots.SETS.get(results['data'], results['data'])}, {results['questions']}"
        for setup in (each for each in plots.GIVEN if each in results["setups"]):
            found = results["setups"][setup]
            cells = [
                f"{found['recall'][channel]['@5']['mean']} ({found['recall'][channel]['@10']['mean']})"
                if channel in found["recall"]
                else ""
                for channel in channels
            ]
            gain = found["difference"]["all − plain"]["@5"]
            rows.append([name, plots.GIVEN[setup], *cells, f"{gain['mean']:+} [{gain['low']}, {gain['high']}]"])
            name = ""
    return table(["set, questions", "filed with", *channels.values(), "all − vectors @5"], rows)


def scan(results: Results) -> list[str]:
    rows = [
        [plots.filter_title(which), peer, cell["setting"], cell["recall"], f"{cell['queries_per_second']:,}"]
        for which, cells in results["filters"].items()
        for peer, cell in cells.items()
    ]
    return table(["rows", "", "setting", "recall@10", "queries a second"], rows)


def peers(results: Results) -> list[str]:
    rows = []
    for peer, cell in results["peers"].items():
        rates = [
            f"{found['queries_per_second']:,} ({found['recall']})" if found else "cannot be asked"
            for found in cell["filters"].values()
        ]
        about = [f"{cell['rows']:,}", f"{cell['filed_rows_per_second']:,}", cell["disk_over_payload"]]
        about += [cell["first_answer_seconds"], f"{cell['private_memory_mb']:,}"]
        rows.append([f"{peer} {cell['version']}".strip(), cell["keeps"], *about, *rates])
    filters = next(iter(results["peers"].values()))["filters"]
    head = ["", "keeps", "rows", "filed, rows/s", "disk ÷ payload", "first answer, s", "private MB"]
    return table([*head, *(f"{which}: queries/s (recall@10)" for which in filters)], rows)


def recall(*files: Results) -> list[str]:
    kinds = [(results, kind) for results in files for kind in ("clustered", "sentences") if kind in results]
    rows = [
        [case, *(f"{cells[kind]['cases'][case]['recall']:.3f} ({cells[kind]['cases'][case]['queries_per_second']:,})"
                 for cells, kind in kinds)]
        for case in files[0]["clustered"]["cases"]
    ]  # fmt: skip
    head = [
        f"{kind}, {results[kind]['rows']:,} × {results[kind]['width']:,}, `{results['compress']}`"
        for results, kind in kinds
    ]
    return table(["rows that pass", *head], rows)


def growth(results: Results) -> list[str]:
    rows = [
        [
            f"{size['rows']:,}",
            f"{size['filing']['rows_a_second']:,.0f}",
            size["filing"]["coding_after_filing_seconds"],
            f"{size['opened']['seconds']:.2f}",
            size["opened"]["anonymous_mb"],
            f"{size['bytes_a_row']:.0f}" if "bytes_a_row" in size else "",
            size.get("disk_over_payload", ""),
            *(size["opened"].get(f"{what}_p50_ms", "") for what in ("search", "evidence", "graph")),
        ]
        for size in results["sizes"]
    ]
    head = ["rows", "filed, rows/s", "coded after, s", "start-up from the cache, s", "private MB", "bytes a row"]
    head += ["disk ÷ payload", "search p50, ms", "of it the graph, ms", "query of the graph p50, ms"]
    # What an earlier run did not measure has no column.
    kept = [at for at in range(len(head)) if any(row[at] != "" for row in rows)]
    return table([head[at] for at in kept], [[row[at] for at in kept] for row in rows])


def service(results: Results) -> list[str]:
    parts = {"framework": "the framework alone", "front end": "front end, answer ready"}
    parts |= {"smallest": "search, no words or graph", "defaults": "search, every default"}
    rows = [
        [words, way, f"{cell['cpu_ms']:.2f}", f"{cell['requests_per_second']:,}", cell["p50_ms"], cell["p99_ms"]]
        for part, words in parts.items()
        for way, cell in results[part].items()
    ]
    return table(["", "by", "processor time, ms", "requests a second", "p50, ms", "p99, ms"], rows)


def servers(results: Results) -> list[str]:
    rows = [
        [name, cell["cpu_ms"], f"{cell['requests_per_second']:,}", cell["p50_ms"], cell["p99_ms"]]
        for name, cell in results["servers"].items()
    ]
    return table(["server", "processor time, ms", "requests a second", "p50, ms", "p99, ms"], rows)


def latency(results: Results) -> list[str]:
    rows = [
        [f"{turn}: {what}", cell["p50"], cell["p95"]]
        for turn, cells in results["milliseconds"].items()
        for what, cell in cells.items()
    ]
    return table(["", "p50, ms", "p95, ms"], rows)


def ingest(results: Results) -> list[str]:
    rate, memory = results["rate"], results["memory"]
    rows = [
        ["texts a second, filed", f"{rate['node_texts_a_second']:,}"],
        ["texts a second, the model alone", f"{rate['model_texts_a_second']:,}"],
        ["share kept", f"{100 * rate['share']:.1f} %"],
        ["share of processor time", f"{100 * rate['share_of_processor_time']:.1f} %"],
        [f"memory grown until {memory['steps'][-1]['documents']:,} documents, MB", memory["growth_mb"]],
        ["bytes a row", memory["growth_bytes_a_row"]],
    ]
    return table(["", ""], rows)


def soak(results: Results) -> list[str]:
    windows, above = results["soak"], results["above"]
    rows = [
        ["capacity: mixed requests a second that were held", results["capacity_per_second"]],
        ["p99 in the first and in the last window, ms", f"{windows[0]['p99_ms']} → {windows[-1]['p99_ms']}"],
        ["resident memory, MB", f"{windows[0]['resident_mb']} → {windows[-1]['resident_mb']}"],
        ["file descriptors", f"{windows[0]['descriptors']} → {windows[-1]['descriptors']}"],
        ["above capacity: offered a second", above["offered_per_second"]],
        ["above capacity: answered a second", above["answered_per_second"]],
        ["above capacity: p99 of a refusal (429), ms", above["refused_p99_ms"]],
        ["what went wrong", "; ".join(results["wrong"]) or "nothing"],
    ]
    return table(["", ""], rows)


def owners(results: Results) -> list[str]:
    """Whatever is measured of an owner, a column each."""
    measured = [key for key in results["owner"][0] if key not in ("rank", "rows")]
    rows = [[f"{each['rows']:,}", *(each[key] for key in measured)] for each in results["owner"]]
    return table(["the owner's rows", *(key.replace("_", " ") for key in measured)], rows)


def words(results: Results) -> list[str]:
    rows = [
        [each["query"], each["caller"], each["media"] or "any", each["p50"], each["p99"], each["found"]]
        for each in results["milliseconds"]
    ]
    return table(["looked up", "caller", "media type", "p50, ms", "p99, ms", "found"], rows)


def profile(*files: Results) -> list[str]:
    layers = list(dict.fromkeys(layer for results in files for layer in results["layers"]))
    rows = [[layer, *(f"{100 * results['layers'].get(layer, 0):.1f} %" for results in files)] for layer in layers]
    return table(["layer", "a search", "a deposit"][: 1 + len(files)], rows)


def embed(results: Results) -> list[str]:
    rows = [[what, *results[what].values()] for what in ("embedder", "bare model")]
    return table(["", "texts a second", "tokens a second"], rows)


def extraction(results: Results) -> list[str]:
    rows = []
    for name, cell in results["runs"].items():
        scores = [f"{cell[what][score]:.3f}" for what in ("entities", "triples") for score in _SCORES]
        rows.append([name, *scores, cell["unusable_sentences"]])
    head = [f"{what}: {score}" for what in ("entities", "triples") for score in _SCORES]
    return table(["read by", *head, "unusable"], rows)


_SCORES = ("precision", "recall", "f1")


def ratios(results: Results) -> list[str]:
    return table(["", "ratio"], results.get("ratios", {}).items())
