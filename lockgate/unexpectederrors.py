"""Report unexpected errors to people: one paragraph, and the traceback in a file whose path is printed."""

import sys
import tempfile
import traceback

from lockgate.escaping import escape
from lockgate.secrets import masked


def report_unexpected(surprise: Exception, *, fix: str, show: bool = False) -> None:
    """Report an error that is Lockgate's fault; `show` prints the traceback instead of keeping it."""
    summary = escape(masked(f"{type(surprise).__name__}: {surprise}".partition("\n")[0]))
    whole = escape(masked("".join(traceback.format_exception(surprise))), keeps="\n\t")
    print(f"Unexpected error, probably a bug in Lockgate: {summary}", file=sys.stderr)
    if show:
        print(whole, end="", file=sys.stderr)
        return
    with tempfile.NamedTemporaryFile("w", prefix="lockgate-", suffix=".traceback", delete=False) as file:
        file.write(whole)
    print(f"  where: {file.name}\n  fix:   {fix}", file=sys.stderr)
