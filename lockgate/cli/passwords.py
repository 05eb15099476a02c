"""Passwords on command lines: processes that we start receive them in their environment instead.

Every user of a machine can read the command lines of all processes. Only its owner can read an environment, and a
process that takes the words out of its environment passes them on to no other process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from lockgate.secrets import masked_word

WORDS = "LOCKGATE_WORDS"
"""The variable with the words of a command."""

PARAMETERS = "LOCKGATE_PARAMETERS"
"""The variable with the parameters of the job that is proven or compared."""


def hide(words: Sequence[str], variable: str) -> tuple[list[str], dict[str, str]]:
    """The words that others may see, and the environment that gives a process the real ones.

    >>> hide(["run", "-p", "password=wonder"], WORDS)
    (['run', '-p', 'password=***'], {'LOCKGATE_WORDS': '["run", "-p", "password=wonder"]'})
    >>> hide(["run", "-p", "password=env:WORD"], WORDS)
    (['run', '-p', 'password=env:WORD'], {})
    """
    shown = [masked_word(word) for word in words]
    return shown, {} if shown == [*words] else {variable: json.dumps([*words])}


def take(shown: Sequence[str], variable: str) -> list[str]:
    """The real words of a process that was started with the result of `hide`."""
    hidden = os.environ.pop(variable, None)
    return [*shown] if hidden is None else [str(word) for word in json.loads(hidden)]
