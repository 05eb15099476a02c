"""Ask a function of the user's for a secret: `hook:module:function`.

The function gets the name of the login and returns the secret as text. If it raises, only the type of the error is
shown, because its text may contain what the function has read so far.

A JVM cannot call the function, so it starts this file as a separate process:

    python -m lockgate.hooks REFERENCE LOGIN      prints + and the secret, or - and why there is none
"""

from __future__ import annotations

import contextlib
import importlib
import sys

PREFIX = "hook:"


class NoSecret(Exception):
    """A hook gave no secret; the text says why, and contains no part of a secret."""


def ask(reference: str, login: str) -> str:
    """The secret that the function of a reference returns for a login.

    What the function prints goes to standard error, because programs read our standard output.
    """
    with contextlib.redirect_stdout(sys.stderr):
        return _ask(reference, login)


def _ask(reference: str, login: str) -> str:
    module_name, _, name = reference.removeprefix(PREFIX).partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name, None)
    except ModuleNotFoundError as error:
        raise NoSecret(
            f"there is no module {error.name!r}; `import {module_name}` in the job file sends it along"
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - code of the user's
        raise NoSecret(f"module {module_name!r} cannot be imported: {type(error).__name__}") from None
    if not callable(function):
        raise NoSecret(f"module {module_name!r} has no function {name!r}")
    try:
        found = function(login)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - code of the user's
        raise NoSecret(f"the function raised {type(error).__name__}; its text is not shown") from None
    if not isinstance(found, str):
        raise NoSecret(f"the function returned {type(found).__name__}, not text")
    return found


def main(reference: str, login: str) -> None:
    """Answer the JVM that started this process."""
    try:
        answer = f"+{str.__str__(ask(reference, login))}"
    except NoSecret as error:
        answer = f"-{error}"
    sys.stdout.buffer.write(answer.encode(errors="surrogateescape"))


if __name__ == "__main__":
    main(*sys.argv[1:])
