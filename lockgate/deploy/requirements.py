"""The libraries of a job, pinned to the versions that are installed here: the job was tried with these.

Spark is not among them, because the cluster brings it. Neither is this package, which is sent as an archive. A library
that another one needs is pinned if it is installed; so a library only for other platforms is not pinned.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lockgate.errors import BadMachine
from lockgate.spark.shipping import find_modules, top_level_imports

_OF_THE_CLUSTER = {"pyspark", "py4j", "lockgate"}
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True)
class Requirement:
    """One requirement in the metadata of a distribution."""

    name: str
    extras: frozenset[str]
    only_with: str | None  # the extra of the one that needs it

    @classmethod
    def read(cls, text: str) -> Requirement:
        """Read a line of metadata.

        >>> Requirement.read("psycopg[binary]>=3; extra == 'postgres'").only_with
        'postgres'
        """
        wanted, _, marker = text.partition(";")
        found = _REQUIREMENT.match(wanted)
        assert found is not None, text
        extra = _EXTRA.search(marker)
        extras = frozenset(one.strip() for one in (found.group(2) or "").split(",") if one.strip())
        return cls(_canonical(found.group(1)), extras, None if extra is None else extra.group(1))


def pin(job_file: Path, extras: Sequence[str]) -> dict[str, str]:
    """The distributions that a job needs on every machine, with the installed version of each."""
    pinned: dict[str, str] = {}
    asked = [Requirement("lockgate", frozenset(extras), None)]
    asked += [Requirement(name, frozenset(), None) for name in _imported_by(job_file)]
    seen: set[Requirement] = set()
    while asked:
        one = asked.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            found = importlib.metadata.distribution(one.name)
        except importlib.metadata.PackageNotFoundError:
            continue  # only for another platform, or for another version of Python
        if one.name not in _OF_THE_CLUSTER:
            pinned[one.name] = found.version
        if one.name == "pyspark":
            continue
        needed = [Requirement.read(text) for text in found.requires or ()]
        wanted = [other for other in needed if other.only_with is None or other.only_with in one.extras]
        if one.name == "lockgate":
            _require_installed(wanted, extras)
        asked += wanted
    return dict(sorted(pinned.items()))


def as_text(
    pinned: Mapping[str, str], *, job: str, spark: str, hashes: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str:
    """The lines of a requirements.txt; with hashes if each library has one, because pip checks all of them or none."""
    python = ".".join(map(str, sys.version_info[:2]))
    head = [
        f"# What job {job} needs on every machine that runs its Python: driver and executors. Python {python}.",
        f"# Spark itself comes with the cluster, and must be {spark}: so pyspark is not listed.",
    ]
    told = hashes if pinned.keys() <= hashes.keys() else {}
    ends = {name: "".join(f" \\\n    --hash=sha256:{one}" for one in told.get(name, ())) for name in pinned}
    return "\n".join([*head, *(f"{name}=={version}{ends[name]}" for name, version in pinned.items()), ""])


def _imported_by(job_file: Path) -> set[str]:
    """The distributions that the job file and the modules beside it import, if they are installed."""
    beside = find_modules(job_file)
    files = [job_file, *(file for place in beside for file in ([place] if place.is_file() else place.rglob("*.py")))]
    names = {name for file in files for name in top_level_imports(file)} - {place.stem for place in beside}
    by_module = importlib.metadata.packages_distributions()
    return {_canonical(owner) for name in names for owner in by_module.get(name, ())}


def _require_installed(wanted: Iterable[Requirement], extras: Sequence[str]) -> None:
    for one in wanted:
        if one.only_with is not None and not _is_installed(one.name):
            raise BadMachine(
                f"{one.name}, which the job needs, is not installed here, so its version cannot be pinned",
                where=sys.prefix,
                fix=f"pip install 'lockgate[{','.join(extras)}]'",
            )


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
