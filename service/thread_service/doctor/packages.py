"""What is installed, against what this program declares."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distributions, requires, version

from thread_service.doctor.result import Result, ok, problem, warning
from thread_service.settings import Settings

DISTRIBUTION = "thread-node"
_FAISS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")
"""They install the same module."""


def declared(settings: Settings) -> Result:
    """Everything the base install needs is there, in a version that goes with it."""
    # Comes with huggingface-hub; where it is missing, so is that.
    from packaging.requirements import Requirement

    wrong: list[str] = []
    wanted = [Requirement(line) for line in requires(DISTRIBUTION) or ()]
    wanted = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    for requirement in wanted:
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} is {found}, not {requirement.specifier}")
    if wrong:
        return problem("; ".join(wrong), f"pip install --upgrade '{DISTRIBUTION}[cpu]'")
    return ok(f"{DISTRIBUTION} {version(DISTRIBUTION)} and {len(wanted)} packages")


def faiss(settings: Settings) -> Result:
    """Exactly one of the packages that bring FAISS."""
    there = sorted({name for each in distributions() if (name := _normal(each.metadata["Name"])) in _FAISS})
    shown = ", ".join(f"{name} {version(name)}" for name in there)
    if not there:
        return problem(
            "FAISS is not installed", f"pip install '{DISTRIBUTION}[cpu]', or [cuda12] or [cuda13] for a GPU"
        )
    if len(there) > 1:
        return problem(f"{shown} overwrite each other", f"pip uninstall {' '.join(there)}, then install one again")
    return ok(shown)


def _normal(name: str | None) -> str:
    return (name or "").lower().replace("_", "-")


def database(settings: Settings) -> Result:
    """SQLite comes with apsw; the index of words needs FTS5 of a certain age."""
    import apsw

    found = f"SQLite {apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"
    with apsw.Connection(":memory:") as connection:
        try:
            connection.execute(
                "CREATE VIRTUAL TABLE words USING"
                " fts5(body, content = '', contentless_delete = 1, tokenize = 'porter ascii')"
            )
        except apsw.SQLError as error:
            return problem(f"{found}: {error}", "pip install --upgrade apsw: its own SQLite has FTS5")
    return ok(f"{found} with FTS5")


def onnx(settings: Settings) -> Result:
    import onnxruntime

    providers = ", ".join(onnxruntime.get_available_providers())
    if "CPUExecutionProvider" not in providers:
        return warning(
            f"onnxruntime {onnxruntime.__version__}: {providers}", "pip install --force-reinstall onnxruntime"
        )
    return ok(f"onnxruntime {onnxruntime.__version__}: {providers}")
