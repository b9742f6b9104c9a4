"""Where does the time of a search go, and of a deposit? Each layer's share of the node's samples, and flame graphs.

    python benchmarks/profile_layers.py --data DIR

A node is filled as `search_latency.py` fills one and started as `thread` starts it. One caller asks it the data set's
questions over HTTP, one after the other and none twice; then one deposits passages with their relationships, each of
them new, and waits until it is searchable. py-spy samples all threads of the node meanwhile, and only those that run:
a share is one of processor time. It does so twice, once for the numbers and once for the picture.

A sample belongs to the layer of the innermost frame that is the node's own, or the HTTP framework's; what a library
does, such as faiss, onnxruntime or SQLite, counts for the layer that called it. Linux only; py-spy must be allowed to
read another process (root, or CAP_SYS_PTRACE).
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness import MODEL, OWNER, DataSet, file_all, opened_node, parse, peers, rest_soon, wait_for_rest, write_results
from load import Call, http_callers, http_request, mothership
from search_latency import CopyingEmbedder, document
from service import START_SECONDS, wait_ready
from service_nodes import run, run_apart, started_node

from thread_service.node.operations import DocumentIn

OPTIONS: dict[str, Any] = {"graph_mode": "boost", "lexical": True}
RECORD = ("record", "--rate", "100", "--nonblocking", "--function")
"""Not blocking: a thread that is stopped to be read runs for a moment to wait again, and would be counted each time."""
LAYERS = ("wire", "node", "search", "batching", "models", "store", "text", "kernels")
FRAMEWORK = "HTTP framework"
LOOP = "event loop"
OTHER = "everything else"
SMALLEST_SHARE = 0.005
"""Of a file, to be named."""
_OWN = re.compile(r"thread_service/(?P<layer>\w+)[/.]|(?P<kernels>thread_kernels)/")
_FRAMEWORK = re.compile(r"\b(uvicorn|litestar|httptools|msgspec)/")
_COMMAND = re.compile(r"[^<>]*py-spy record [^<>]*")
"""The picture's title, with paths of the machine."""
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*?)(:\d+)?\)$")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus, queries and triples (.jsonl)")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=30, help="of each recording; there are four")
    arguments = parse(parser, documents=200, seconds=4)
    with peers():
        version("py-spy")
    data = DataSet.read(arguments.data)
    with tempfile.TemporaryDirectory(prefix="thread-benchmark-") as name:
        (Path(name) / "node").mkdir()
        run_apart(fill, Path(name) / "node", data, arguments.documents)
        recordings = run(record(Path(name), data, arguments.documents, arguments.seconds))
        for work, recording in recordings.items():
            measured = {
                "data": data.name,
                "documents": arguments.documents,
                "seconds": arguments.seconds,
                "picture": " ".join(("py-spy", *RECORD, "--format flamegraph --pid", "NODE")),
                **shares(recording.with_suffix(".raw").read_text().splitlines()),
            }
            show(work, measured)
            ratios = {"share of the model": measured["layers"]["models"]}
            path = write_results(f"profile-{work}", measured, ratios=ratios, quick=arguments.quick)
            picture = recording.with_suffix(".svg").read_text()
            path.with_suffix(".svg").write_text(_COMMAND.sub(f"{work}: running threads of the node", picture))
            print(f"written: {path.relative_to(path.parents[2])} and its picture, .svg")


async def fill(folder: Path, data: DataSet, count: int) -> None:
    """That many documents; the first are the data set's own."""
    rest_soon()
    async with opened_node(CopyingEmbedder(MODEL), folder=folder) as opened:
        await file_all(opened.node, [made(data, at) for at in range(count)])
        await asyncio.to_thread(wait_for_rest, opened.store)


def made(data: DataSet, number: int) -> DocumentIn:
    return document(data.passages[number % len(data.passages)], number // len(data.passages))


async def record(folder: Path, data: DataSet, documents: int, seconds: int) -> dict[str, Path]:
    """What is done → the recordings: numbers in .raw, the picture in .svg."""
    works = {"search": searches(data), "deposit": deposits(data, documents)}
    async with mothership() as (peer, port):
        with started_node(folder / "node", OPTIONS, port) as pid:
            registered = await asyncio.wait_for(peer.registered, START_SECONDS)
            await asyncio.to_thread(wait_ready, registered.http_port)
            async with http_callers(registered.http_port, 1) as [call]:
                for work, requests in works.items():
                    for _ in range(20):  # warm
                        await call(next(requests))
                    for form, suffix in (("raw", ".raw"), ("flamegraph", ".svg")):
                        await sample(pid, seconds, form, folder / f"{work}{suffix}", call, requests)
    return {work: folder / work for work in works}


async def sample(pid: int, seconds: int, form: str, path: Path, call: Call, requests: Iterator[bytes]) -> None:
    """Have py-spy record the node into `path` for as long, and ask one request after the other meanwhile."""
    sampler = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("py-spy")),
        *(*RECORD, "--pid", str(pid), "--duration", str(seconds), "--format", form, "--output", str(path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    recording = asyncio.create_task(sampler.communicate())
    while not recording.done():
        await call(next(requests))
    said, _ = await recording
    if sampler.returncode:
        raise SystemExit(f"py-spy ended with {sampler.returncode}: {said.decode().strip()}")


def searches(data: DataSet) -> Iterator[bytes]:
    """No text twice, or its vector would be remembered: white space is added, which no tokenizer keeps."""
    for number in range(1, 1 << 30):
        question = data.questions[number % len(data.questions)].text
        unseen = question + "".join(" \t"[int(digit)] for digit in f"{number:b}")
        yield http_request("/v1/search", {"thread": {"owner_id": OWNER}, "query": unseen})


def deposits(data: DataSet, documents: int) -> Iterator[bytes]:
    """Copies of passages that come after those the node is filled with."""
    for number in range(documents, 1 << 30):
        filed = made(data, number)
        body = {
            "thread": {"owner_id": OWNER},
            "inputs": [list(filed.texts)],
            "document_ids": [filed.document_id],
            "names": [filed.name],
            "entities": [[{"name": each.name, "kind": each.kind} for each in filed.entities or ()]],
            "relationships": [
                [
                    {"subject": each.subject, "predicate": each.predicate, "object": each.object}
                    for each in filed.relationships
                ]
            ],
            "wait": True,
        }
        yield http_request("/v1/batch/embeddings", body)


# ---------------------------------------------------------------------------------------------------- shares


def shares(stacks: Iterable[str]) -> dict[str, Any]:
    """`stacks`: frames from the outermost to the innermost, separated by semicolons, then a space and their samples."""
    layers, files = Counter[str](), Counter[str]()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        layer, file = owner_of(stack.split(";"))
        layers[layer] += int(count)
        files[file] += int(count)
    total = max(1, layers.total())
    return {
        "samples": layers.total(),
        "layers": {name: round(layers[name] / total, 4) for name in (LOOP, FRAMEWORK, *LAYERS, OTHER)},
        "files": {
            name: round(count / total, 4) for name, count in files.most_common() if count / total >= SMALLEST_SHARE
        },
    }


def owner_of(frames: list[str]) -> tuple[str, str]:
    """(layer, file) of a stack."""
    for frame in reversed(frames):
        matched = _FRAME.match(frame)
        file = matched["file"] if matched else ""
        own = _OWN.search(file)
        if own is not None:
            layer = "kernels" if own["kernels"] else own["layer"]
            # `app` is the outermost of the loop's thread: below it there is only the loop itself, which is C.
            return LOOP if layer == "app" else layer if layer in LAYERS else OTHER, file[own.start() :]
        framework = _FRAMEWORK.search(file)
        if framework is not None:
            return FRAMEWORK, framework[1]
    innermost = _FRAME.match(frames[-1])
    return OTHER, innermost["file"] if innermost else frames[-1]


def show(work: str, measured: dict[str, Any]) -> None:
    print(f"\n{work}: {measured['samples']} samples of running threads")
    for title in ("layers", "files"):
        for name, share in measured[title].items():
            print(f"  {name:44}{share:7.1%}")
        print()


if __name__ == "__main__":
    main()
