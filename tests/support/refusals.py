"""Checks that raise if they refuse something."""

from collections.abc import Callable
from typing import Any

from lockgate.errors import LockgateError


def require_accepted(check: Callable[..., None], *arguments: Any, **named: Any) -> None:
    """A check does not refuse this."""
    refusal: LockgateError | None = None
    try:
        check(*arguments, **named)
    except LockgateError as error:
        refusal = error
    assert refusal is None
