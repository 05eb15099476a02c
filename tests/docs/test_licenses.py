"""The list of licences: everything that is locked is in it, under a licence that may be used."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = frozenset(
    {
        *(
            "0BSD",
            "Apache-2.0",
            "BSD-2-Clause",
            "BSD-3-Clause",
            "CC0-1.0",
            "ISC",
            "MIT",
            "MIT-0",
            "PSF-2.0",
            "PostgreSQL",
        ),
        *("Zlib", "MPL-2.0"),  # MPL: changes to its own files have to be published, and we change none
        *("LGPL-2.1-or-later", "LGPL-3.0-only"),  # libraries that are imported as they are, and can be replaced
    }
)


@pytest.fixture
def sbom(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    sys.modules.pop("sbom", None)
    import sbom

    return sbom


def is_allowed(expression: str) -> bool:
    """May we choose such a licence? Of several with AND all count, of several with OR one."""
    return any(set(re.split(r" AND ", one)) <= ALLOWED for one in expression.split(" OR "))


def test_every_package_and_jar_is_listed_in_its_version_and_nothing_else(sbom: ModuleType) -> None:
    needed: dict[str, set[str]] = {}
    for one in (*sbom.locked(), *sbom.jars()):
        needed.setdefault(one.name, set()).add(one.version)
    listed = sbom.read_licenses((ROOT / "docs" / "LICENSES.md").read_text())
    assert {name: set(one.versions) for name, one in listed.items()} == needed


def test_every_licence_may_be_used(sbom: ModuleType) -> None:
    listed = sbom.read_licenses((ROOT / "docs" / "LICENSES.md").read_text())
    assert {name: one.license for name, one in listed.items() if not is_allowed(one.license)} == {}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("EPL-2.0 OR BSD-3-Clause", True),
        ("AGPL-3.0-only OR SSPL-1.0", False),
        ("", False),
    ],
)
def test_a_licence_that_is_not_on_the_list_is_noticed(expression: str, expected: bool) -> None:
    assert is_allowed(expression) is expected
