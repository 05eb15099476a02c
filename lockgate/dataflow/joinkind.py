"""Kinds of joins: which events of two sides have a result when they meet nothing."""

from enum import StrEnum


class JoinKind(StrEnum):
    """Which rows a join gives beside the pairs. The text of a member does as well: `how="left"`.

    | member | rows beside the pairs |
    |---|---|
    | `INNER` | none |
    | `LEFT` | events of the left side that met nothing |
    | `RIGHT` | events of the right side that met nothing |
    | `FULL` | both |

    A join with a table is `INNER` or `LEFT`: its rows come only with an event.

    >>> JoinKind.LEFT == "left"
    True
    """

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
