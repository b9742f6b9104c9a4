"""How much of what a text says is extracted, and how much of what is extracted does it say?

    python benchmarks/extraction.py --data DIR [--url URL --model NAME]

Keywords, and with `--url` an instruct model that any server of the OpenAI kind runs, read the sentences of
Text2KGBench; what they find is compared with its gold triples. A triple is right when subject, predicate and object
are, up to case, spacing, punctuation and Unicode form; a pair, when two entities are linked in that direction by
whatever predicate; an entity, when a gold triple has it at either end. The model is told the kinds and the predicates
of each sentence's ontology, as the benchmark's authors do. Precision, recall and F1 are over all sentences together.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Triple, parse, read_lines, write_results

from thread_service.errors import NotReady
from thread_service.models.extraction.chat_api import ChatApi
from thread_service.models.extraction.extractor import InstructExtractor
from thread_service.models.extraction.interface import ExtractionFailed, Found
from thread_service.models.extraction.prompt import TEMPLATE
from thread_service.node.extraction import found_in
from thread_service.text.ids import normalise_kind, normalise_predicate
from thread_service.text.policy import Kind, Policy
from thread_service.text.resolution import resolution_key

AWAY_SECONDS = 600.0
"""How long the server may be away before the run is given up."""


@dataclass(frozen=True, slots=True)
class Sentence:
    text: str
    ontology: str
    gold: tuple[Triple, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """What was found in one sentence; `triples` by names."""

    entities: tuple[str, ...]
    triples: tuple[Triple, ...] = ()
    is_usable: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus, triples and ontologies .jsonl")
    parser.add_argument(
        "--url", help="as `thread --graph-url` takes it; the key is in OPENAI_API_KEY, where one is needed"
    )
    parser.add_argument("--model", default="", help="the server's name of the model")
    parser.add_argument("--sentences", type=int, default=0, help="that many, evenly spread over the set; 0: all")
    parser.add_argument("--at-once", type=int, default=16, help="sentences that are asked about at a time")
    arguments = parse(parser, sentences=400)
    sentences, policies = read_set(arguments.data)
    if arguments.sentences:
        sentences = sentences[:: max(1, len(sentences) // arguments.sentences)][: arguments.sentences]
    measured: dict[str, Any] = {"keyword": measure(sentences, lambda sentence: by_keywords(sentence, policies), 1)}
    show("keyword", measured["keyword"])
    if arguments.url:
        api = ChatApi(arguments.url, arguments.model, lambda: os.environ.get("OPENAI_API_KEY", ""))
        extractor = InstructExtractor(api, slots=arguments.at_once)
        run = measure(sentences, lambda sentence: by_model(extractor, sentence, policies), arguments.at_once)
        stats = extractor.stats
        run["invalid_answers"] = stats.invalid
        run["answers"] = stats.answered + stats.invalid
        extractor.close()
        show(arguments.model, run)
        rate = stats.invalid / max(1, run["answers"])
        print(f"invalid answers: {stats.invalid} of {run['answers']} ({rate:.1%})")
        measured[arguments.model] = run
    names = [name for sentence in sentences for subject, _, object_ in sentence.gold for name in (subject, object_)]
    spellings, resolved = len({*names}), len({resolution_key(name) for name in names})
    print(f"gold names: {spellings} spellings of {resolved} names")
    path = write_results(
        f"extraction-{arguments.data.resolve().name}",
        {"sentences": len(sentences), "spellings": spellings, "names": resolved, "runs": measured},
        ratios={f"gold entities found / all, {name}": run["entities"]["recall"] for name, run in measured.items()},
        quick=arguments.quick,
    )
    print(f"\nwritten: {path.relative_to(path.parents[2])}")


def read_set(folder: Path) -> tuple[list[Sentence], dict[str, Policy]]:
    """The sentences that have gold triples, and by ontology the policy that tells a model about it."""
    gold: defaultdict[str, list[Triple]] = defaultdict(list)
    for line in read_lines(folder / "triples.jsonl"):
        gold[line["doc_id"]].append((line["subject"], line["predicate"], line["object"]))
    sentences = [
        Sentence(line["text"], line["ontology"], tuple(gold[line["id"]]))
        for line in read_lines(folder / "corpus.jsonl")
        if line["id"] in gold
    ]
    return sentences, {line["id"]: policy_of(line) for line in read_lines(folder / "ontologies.jsonl")}


def policy_of(ontology: Mapping[str, Any]) -> Policy:
    labels = {concept["qid"]: concept["label"] for concept in ontology["concepts"]}
    predicates = "\n".join(
        f'- "{relation["label"]}": from {labels.get(relation["domain"], "anything")} to'
        f" {labels.get(relation['range'], 'anything, such as a date or a number')}"
        for relation in ontology["relations"]
    )
    kinds = {normalise_kind(label): None for label in labels.values()}
    return Policy(
        kinds=tuple(map(Kind, kinds)),
        prompt_template=f"{TEMPLATE}\nUse these predicates only, and only for what the text says:\n{predicates}\n",
    )


def by_keywords(sentence: Sentence, policies: Mapping[str, Policy]) -> Read:
    return Read(tuple(found_in([sentence.text], policies[sentence.ontology])))


def by_model(extractor: InstructExtractor, sentence: Sentence, policies: Mapping[str, Policy]) -> Read:
    started = time.monotonic()
    while True:
        try:
            return of(extractor.extract([sentence.text], policies[sentence.ontology]))
        except ExtractionFailed:
            return Read((), is_usable=False)
        except NotReady as error:
            if time.monotonic() - started > AWAY_SECONDS:
                raise SystemExit(str(error)) from None
            time.sleep(max(0.1, extractor.pause()))


def of(found: Found) -> Read:
    names = [entity.name for entity in found.entities]
    return Read(
        tuple(names), tuple((names[edge.subject], edge.predicate, names[edge.object]) for edge in found.relationships)
    )


def measure(sentences: Sequence[Sentence], read: Callable[[Sentence], Read], at_once: int) -> dict[str, Any]:
    started = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        found = list(threads.map(read, sentences))
    seconds = time.perf_counter() - started
    pairs = list(zip(found, sentences, strict=True))
    return {
        "triples": score((triples(one.triples), triples(sentence.gold)) for one, sentence in pairs),
        "pairs": score((ends(one.triples), ends(sentence.gold)) for one, sentence in pairs),
        "entities": score((keys(one.entities), keys(names_of(sentence.gold))) for one, sentence in pairs),
        "unusable_sentences": sum(not one.is_usable for one in found),
        "seconds": round(seconds, 1),
    }


def score(found_and_gold: Iterable[tuple[set[Any], set[Any]]]) -> dict[str, float]:
    right = found = gold = 0
    for one, other in found_and_gold:
        right, found, gold = right + len(one & other), found + len(one), gold + len(other)
    precision, recall = right / max(1, found), right / max(1, gold)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"precision": round(precision, 4), "recall": round(recall, 4), "f1": round(f1, 4)}


def triples(said: Iterable[Triple]) -> set[Triple]:
    return {(resolution_key(a), normalise_predicate(verb), resolution_key(b)) for a, verb, b in said}


def ends(said: Iterable[Triple]) -> set[tuple[str, str]]:
    return {(subject, object_) for subject, _, object_ in triples(said)}


def keys(names: Iterable[str]) -> set[str]:
    return {*map(resolution_key, names)}


def names_of(said: Iterable[Triple]) -> Iterator[str]:
    for subject, _, object_ in said:
        yield from (subject, object_)


def show(name: str, run: Mapping[str, Any]) -> None:
    print(f"\n{name}: {run['seconds']:.0f} s, sentences without a usable answer: {run['unusable_sentences']}")
    print(f"{'':<10}{'precision':>10}{'recall':>10}{'F1':>10}")
    for what in ("triples", "pairs", "entities"):
        row = run[what]
        print(f"{what:<10}{row['precision']:>10.3f}{row['recall']:>10.3f}{row['f1']:>10.3f}")


if __name__ == "__main__":
    main()
