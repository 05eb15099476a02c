"""What nobody foresaw, as people are told of it: one paragraph, and the traceback in a file whose path is printed."""

import sys
import tempfile
import traceback


def tell_surprise(surprise: Exception, *, fix: str, show: bool = False) -> None:
    """Tell of an error that is nobody's fault but ours; `show` prints the traceback instead of keeping it."""
    summary = f"{type(surprise).__name__}: {surprise}".splitlines()[0]
    print(f"Unexpected error, probably a bug in Lockgate: {summary}", file=sys.stderr)
    if show:
        traceback.print_exception(surprise)
        return
    with tempfile.NamedTemporaryFile("w", prefix="lockgate-", suffix=".traceback", delete=False) as file:
        traceback.print_exception(surprise, file=file)
    print(f"  where: {file.name}\n  fix:   {fix}", file=sys.stderr)
