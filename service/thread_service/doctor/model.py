"""The embedding model: which one the node would run, whether it is here, and whether the index was written with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thread_service.doctor.result import Result, info, ok, problem, warning
from thread_service.doctor.running import database, node_directory
from thread_service.settings import Settings

if TYPE_CHECKING:
    from thread_service.models.choice import Choice
    from thread_service.models.embedder import Embedder, Stamp


@dataclass(frozen=True, slots=True)
class _Index:
    """`has_vectors`: any of a model."""

    stamp: Stamp | None = None
    has_vectors: bool = False


def _index(settings: Settings) -> _Index:
    from thread_service.store import sql, stamp

    directory = node_directory(settings)
    if directory is None:
        return _Index()
    with database(settings, directory) as connection:
        has_vectors = sql.value(connection, "SELECT 1 FROM vectors WHERE purpose <> 'caller' LIMIT 1") is not None
        return _Index(stamp.stored(connection), has_vectors)


def _choice(settings: Settings, stored: _Index) -> Choice:
    from thread_service.models.choice import choose

    return choose(settings, stored.stamp, os.environ)


def model(settings: Settings) -> Result:
    """Whether the model that would run is here, or its provider's key is; nobody is asked."""
    from thread_service.models.choice import hosted_model
    from thread_service.models.embedder import ModelUnavailable
    from thread_service.models.local import LocalEmbedder

    choice = _choice(settings, _index(settings))
    embedder, why = choice.embedder, choice.why
    hosted = hosted_model(embedder.model, os.environ)
    if hosted is not None:
        if hosted.missing:
            return problem(f"{hosted.name} ({why}) has no key", f"set {hosted.missing}, or give --embedder local")
        return ok(f"{hosted.name} at {hosted.url} ({why})")
    assert isinstance(embedder, LocalEmbedder)
    name = embedder.model
    try:
        if embedder.source.here() is None:
            what = f"{name} ({why}) is not in {settings.models_dir}: the first start downloads it"
            return warning(what, "let it reach the Hugging Face Hub, or name a directory with --embedding-model")
        width = embedder.width_by_files()
    except ModelUnavailable as error:
        return problem(f"{name} ({why}): {error}", "give another --embedding-model")
    return ok(f"{name} ({why}), width {width or 'unknown'}")


def entities(settings: Settings) -> Result:
    """What would find entities in texts nobody described; nobody is asked."""
    from thread_service.models.extraction.choice import choose

    choice = choose(settings, os.environ)
    if choice.extractor is not None:
        choice.extractor.close()
        return ok(choice.about)
    if choice.missing:
        return warning(
            f"{choice.missing}: keywords would be extracted", "put that right, or give --graph-backend keyword"
        )
    return info(choice.about)


def index(settings: Settings) -> Result:
    """Whether vectors of the model that would run belong into the index that is there."""
    stored = _index(settings)
    if not stored.has_vectors:
        return info("no vectors yet; the first deposit decides")
    written = stored.stamp.space if stored.stamp is not None else ""
    space = _space(_choice(settings, stored).embedder, written)
    if stored.stamp is None or space != written:
        given = f"give --embedding-model {stored.stamp.model}, or " if stored.stamp is not None else ""
        return problem(
            f"written with {written or 'an unknown model'}, and the node would run {space}: deposits would be refused",
            f"{given}start the node with this one and run `thread reembed`",
        )
    return ok(f"written with {written}")


def _space(embedder: Embedder, stored: str) -> str:
    """The vector space of a model that is not loaded; where its width cannot be told, that of the index is taken."""
    from thread_service.models.choice import hosted_model
    from thread_service.models.local import LocalEmbedder

    if isinstance(embedder, LocalEmbedder):
        short, width = embedder.source.name, embedder.width_by_files()
    else:
        hosted = hosted_model(embedder.model, os.environ)
        short, width = hosted.name if hosted is not None else embedder.model, None
    return f"{short}@{width or stored.rpartition('@')[2]}"
