"""The settings of a proof: everything that determines trial N of seed S.

The file of results has their digest: trials with other settings, of another job or with other versions do not add up
with these.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.guarantees import Guarantee
from lockgate.secrets import masked_value


@dataclass(frozen=True)
class Settings:
    """The settings of a proof; how many trials it has is none of them, so that it can be done in pieces."""

    job: str
    guarantee: Guarantee
    file: str  # as it was given
    parameters: Mapping[str, str]  # of the job file; without passwords, because pages and files of results show them
    options: Mapping[str, str]  # of the command, without --seed and --trial; "" for one without a value
    workload: str  # in words
    job_digest: str  # of the job's code and plan
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        hidden = {name: masked_value(name, value) for name, value in self.parameters.items()}
        object.__setattr__(self, "parameters", hidden)

    @property
    def digest(self) -> str:
        """One short text for all of it, but for the path of the file; the order of options does not matter."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:16]

    def identity(self) -> dict[str, Any]:
        """What makes it another proof where it changes: a job is known by its digest, wherever its file lies."""
        return {name: value for name, value in self.as_json().items() if name != "file"}

    def as_json(self) -> dict[str, Any]:
        """The settings as plain data."""
        return {**asdict(self), "guarantee": self.guarantee.name}

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Settings:
        """Read what `as_json` has written."""
        return cls(**{**plain, "guarantee": Guarantee[plain["guarantee"]]})

    def replay(self, seed: int, number: int) -> str:
        """The command that runs one trial again."""
        return shlex.join([*self._words, "--seed", str(seed), "--trial", str(number)])

    def command(self, seed: int, kills: int) -> str:
        """The command that runs all of them."""
        asked = [] if "--kills" in self.options else ["--kills", str(kills)]
        return shlex.join([*self._words, *asked, "--seed", str(seed)])

    @property
    def _words(self) -> list[str]:
        words = ["lockgate", "prove", self.file]
        words += [word for name, value in self.parameters.items() for word in ("-p", f"{name}={value}")]
        return words + [word for name, value in self.options.items() for word in (name, value) if word]
