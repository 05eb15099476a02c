"""Ask OSV for known vulnerabilities of what Lockgate uses: the packages of requirements.lock, and the jars.

    0    every package and every jar was looked up, and none is known to be vulnerable
    1    at least one is vulnerable; each is named with its advisories
    3    the database could not be reached, or did not answer for all of them: nothing was audited

One database has both, by the same identifier (purl). pip-audit also asks it with `-s osv`. We do not use pip-audit: it
does not know jars, skips packages of other platforms, and ends with 0 if a package is not found.

LOCKGATE_OSV names another server with the same interface, for a network without access to the public one.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

from packageurl import PackageURL
from sbom import jars, locked

SERVER = "https://api.osv.dev"
FOUND, NOT_AUDITED = 1, 3
_AT_ONCE = 100
_SECONDS = 30


class NotAudited(Exception):
    """The database did not answer for all packages and jars."""


def purls() -> list[str]:
    """The identifiers to look up."""
    packages = {PackageURL("pypi", None, one.name, one.version).to_string() for one in locked()}
    return sorted(packages | {PackageURL("maven", one.group, one.artifact, one.version).to_string() for one in jars()})


def look_up(server: str, wanted: Sequence[str]) -> dict[str, list[str]]:
    """The advisories for each of these; NotAudited unless there is an answer for every one."""
    found: dict[str, list[str]] = {}
    # A long list of advisories comes in pages. If there is another page, ask once more, with its token.
    asked = [(purl, "") for purl in wanted]
    while asked:
        now, asked = asked[:_AT_ONCE], asked[_AT_ONCE:]
        answers = _ask(server, [{"package": {"purl": purl}, **({"page_token": at} if at else {})} for purl, at in now])
        for (purl, _), answer in zip(now, answers, strict=True):
            found.setdefault(purl, []).extend(str(one["id"]) for one in answer.get("vulns") or ())
            if more := answer.get("next_page_token"):
                asked.append((purl, str(more)))
    return found


def _ask(server: str, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        f"{server}/v1/querybatch", json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            results = json.loads(answer.read())["results"]
        if len(results) != len(queries) or not all(isinstance(one, dict) for one in results):
            raise NotAudited(f"it answered for {len(results)} of {len(queries)}")
        return list(results)
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        raise NotAudited(f"{type(error).__name__}: {error}") from None


def main() -> int:
    server, wanted = os.environ.get("LOCKGATE_OSV", SERVER).rstrip("/"), purls()
    try:
        advisories = {purl: found for purl, found in look_up(server, wanted).items() if found}
    except NotAudited as error:
        print(
            f"Nothing was audited: {server} could not be asked about {len(wanted)} packages and jars ({error}).\n"
            "  where: make audit\n"
            "  fix:   run it where that server can be reached, or name another one: LOCKGATE_OSV=https://...",
            file=sys.stderr,
        )
        return NOT_AUDITED
    for purl, ids in advisories.items():
        print(f"{purl}  {', '.join(sorted(set(ids)))}")
    print(f"{len(wanted)} packages and jars were looked up at {server}; {len(advisories)} have advisories")
    return FOUND if advisories else 0


if __name__ == "__main__":
    sys.exit(main())
