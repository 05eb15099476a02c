"""Measure the cost of reading and writing the states of a page in format 2 (MessagePack) and in format 1 (pickle).

Both run in turn in one process, on the same values, and the best of all runs counts: other programs only add time.

    .venv/bin/python scripts/measure_state_format.py
"""

import gc
import pickle
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from lockgate.operators.encoding import PLAIN

KEYS, TURNS = 300, 200  # short runs, of which some are not interrupted
AT = 1_750_000_000_000_000
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)

# For each kind of step: the state of a key now, and in format 1, which had tuples instead of our lists.
STATES: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "rolling: sum, count": (lambda n: [n, 17], lambda n: (n, 17)),
    "rolling: sum, avg, max": (lambda n: [n, [n / 3, 7], 5.5], lambda n: (n, (n / 3, 7), 5.5)),
    "rolling: distinct of 100": (
        lambda n: [list(range(n << 40, (n << 40) + 100))],
        lambda n: (tuple(range(n << 40, (n << 40) + 100)),),
    ),
    "process: one number": (lambda n: [[n]], lambda n: ([n],)),
    "process: text, decimal, time": (
        lambda n: [["state", Decimal(n) / 4, NOON]],
        lambda n: (["state", Decimal(n) / 4, NOON],),
    ),
    "process: map_of(STRING) of 20": (
        lambda n: [[{f"player {at}": n + at for at in range(20)}]],
        lambda n: ([{f"player {at}": n + at for at in range(20)}],),
    ),
    "process: map_of(BIGINT) of 20": (
        lambda n: [[[list(range(n, n + 20)), list(range(20))]]],
        lambda n: ([{n + at: at for at in range(20)}],),
    ),
    "process: a MAP<BIGINT, INT> of 20 as one value": (
        lambda n: [[{n + at: at for at in range(20)}]],
        lambda n: ([{n + at: at for at in range(20)}],),
    ),
    "process: a list of 20, a timer": (
        lambda n: [[list(range(20))], [None], [[AT, "silence"]], []],
        lambda n: ([list(range(20))], [None], [(AT, "silence")], []),
    ),
    "a window: count, avg": (
        lambda n: [[[AT, [5, [n / 3, 5]]]], [[AT, [AT + 60_000_000, 0, None, 5, AT]]]],
        lambda n: ({AT: (5, (n / 3, 5))}, {AT: [AT + 60_000_000, 0, None, 5, AT]}),
    ),
    "a window with 10 rows": (
        lambda n: [[[AT, [[AT, n, "text", 1.5] for _ in range(10)]]], [[AT, [AT + 60_000_000, 0, None, 5, AT]]]],
        lambda n: ({AT: [(AT, n, "text", 1.5) for _ in range(10)]}, {AT: [AT + 60_000_000, 0, None, 5, AT]}),
    ),
    "a pattern: 2 partial matches": (
        lambda n: [7, 5, [], [[at, AT, 0, 1, 0, True, [[0, at, AT, [n, "text"]]]] for at in range(2)]],
        lambda n: (7, 5, (), tuple((at, AT, 0, 1, 0, True, ((0, at, AT, (n, "text")),)) for at in range(2))),
    ),
}


def seconds(work: Callable[[], object]) -> float:
    """The duration of this work; without Python's search for cycles, as in an epoch."""
    gc.disable()
    begin = time.perf_counter()
    work()
    took = time.perf_counter() - begin
    gc.enable()
    return took


def measure(now: Callable[[int], Any], before: Callable[[int], Any]) -> tuple[float, float, int, int]:
    """Microseconds and bytes for a key: of format 1, of format 2."""
    keys = [(f"key {number:06}",) for number in range(KEYS)]
    old = [pickle.dumps((key, before(number)), 5) for number, key in enumerate(keys)]
    new = [PLAIN.encode([*key, now(number)]) for number, key in enumerate(keys)]

    def with_pickle() -> None:
        for content, key in zip(old, keys, strict=True):
            held, state = pickle.loads(content)
            assert held == key
            pickle.dumps((key, state), 5)

    def with_messagepack() -> None:
        for entry, key in zip(PLAIN.decode_all(new), keys, strict=True):
            state = entry.pop()
            assert tuple(entry) == key
            PLAIN.encode([*key, state])

    turns = [(seconds(with_pickle), seconds(with_messagepack)) for _ in range(TURNS)]
    best = [min(turn[side] for turn in turns) / KEYS * 1e6 for side in range(2)]
    return best[0], best[1], sum(map(len, old)) // KEYS, sum(map(len, new)) // KEYS


def main() -> None:
    """Print a row for every kind of step."""
    print("| state of a key | format 1, us | format 2, us | times as fast | format 1, bytes | format 2, bytes |")
    print("|---|---|---|---|---|---|")
    for name, (now, before) in STATES.items():
        old, new, old_bytes, new_bytes = measure(now, before)
        print(f"| {name} | {old:.2f} | {new:.2f} | {old / new:.2f} | {old_bytes} | {new_bytes} |")


if __name__ == "__main__":
    main()
