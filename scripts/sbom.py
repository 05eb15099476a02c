"""Write the bill of materials, as CycloneDX: the packages of requirements.lock, and the jars of jars.sha256.

    python scripts/sbom.py > sbom.cdx.json

Versions and hashes come from these two files, and licences from docs/LICENSES.md. With SOURCE_DATE_EPOCH set, the same
files give the same bytes.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from lockgate.deploy.locked import Locked, read_lock

ROOT = Path(__file__).parents[1]
LOCK, JARS, LICENSES = "requirements.lock", "lockgate/provision/jars.sha256", "docs/LICENSES.md"
_JAR = re.compile(r"([0-9a-f]{64})  (\w+)/([^_]+)_(.+?)-(\d[\w.]*(?:-\d+)?)\.jar")
_ROW = re.compile(r"\| ([^|]+) \| (\d[^|]*) \| ([^|]+) \|")


@dataclass(frozen=True)
class Jar:
    """A jar that is fetched."""

    group: str
    artifact: str
    version: str
    sha256: str
    kind: str  # its purpose: connector, broker, hdfs or jdbc

    @property
    def name(self) -> str:
        """Its name in the list of licences."""
        return f"{self.group}:{self.artifact}"


@dataclass(frozen=True)
class Licensed:
    """A row of the list of licences."""

    versions: tuple[str, ...]
    license: str  # an SPDX expression


def read_jars(text: str) -> list[Jar]:
    """The jars of a list of checksums."""
    found = []
    for line in text.splitlines():
        parts = _JAR.fullmatch(line)
        if parts is None:
            raise ValueError(f"{line!r} is not a checksum of a jar")
        found.append(Jar(parts[3], parts[4], parts[5], parts[1], parts[2]))
    return found


def read_licenses(text: str) -> dict[str, Licensed]:
    """The licences of a page, by package or jar."""
    rows = (found.groups() for found in map(_ROW.fullmatch, text.splitlines()) if found)
    return {name: Licensed(tuple(versions.split(" and ")), license) for name, versions, license in rows}


def locked() -> list[Locked]:
    """The packages of this checkout."""
    return read_lock((ROOT / LOCK).read_text(encoding="utf-8"))


def jars() -> list[Jar]:
    """The jars of this checkout."""
    return read_jars((ROOT / JARS).read_text(encoding="utf-8"))


def make_bom() -> str:
    """The bill of materials as JSON."""
    licenses = read_licenses((ROOT / LICENSES).read_text(encoding="utf-8"))
    bom = Bom(version=1)
    content = "".join((ROOT / name).read_text(encoding="utf-8") for name in (LOCK, JARS, LICENSES))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, content)
    if moment := os.environ.get("SOURCE_DATE_EPOCH"):
        bom.metadata.timestamp = datetime.fromtimestamp(int(moment), tz=UTC)
    bom.metadata.component = Component(
        name="lockgate",
        version=importlib.metadata.version("lockgate"),
        type=ComponentType.LIBRARY,
        licenses=[LicenseExpression("Apache-2.0")],
        bom_ref="lockgate",
    )
    for package in locked():
        purl = PackageURL("pypi", None, package.name, package.version)
        component = _component(package.name, package.version, purl, licenses[package.name].license)
        component.hashes.update(_sha256(one) for one in package.sha256)  # of each of its files; pip takes one of them
        if package.marker:
            component.properties.add(Property(name="lockgate:needed-if", value=package.marker))
        bom.components.add(component)
    for jar in {(one.name, one.version): one for one in jars()}.values():
        purl = PackageURL("maven", jar.group, jar.artifact, jar.version)
        component = _component(jar.artifact, jar.version, purl, licenses[jar.name].license, group=jar.group)
        component.hashes.add(_sha256(jar.sha256))
        component.properties.add(Property(name="lockgate:used-by", value=jar.kind))
        bom.components.add(component)
    bom.register_dependency(bom.metadata.component, bom.components)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _component(name: str, version: str, purl: PackageURL, license: str, *, group: str | None = None) -> Component:
    return Component(
        name=name,
        version=version,
        group=group,
        purl=purl,
        type=ComponentType.LIBRARY,
        licenses=[LicenseExpression(license)],
        bom_ref=str(purl),
    )


if __name__ == "__main__":
    sys.stdout.write(make_bom() + "\n")
