"""When events may come: on while the driver is away, and never past what a fault needs.

    events    0 ........ bound 1 ........ bound 2 ........ all
                            kill             kill

A kill is due when the events up to its bound are sent. Until it has happened an eighth of the way to the next bound may
be sent, and half of it until the driver is back: so on a slow machine, too, events come after every start, and every
guarantee meets the same faults at the same places.
"""


def bounds_of(total: int, kills: int) -> tuple[int, ...]:
    """How many events are sent when each kill is due."""
    return tuple(total * (number + 1) // (kills + 1) for number in range(kills))


def may_be_sent(total: int, kills: int, *, killed: int, is_up: bool) -> int:
    """How many events may have been sent, by now."""
    gap = total // (kills + 1)
    bounds = (0, *bounds_of(total, kills))
    if not is_up:
        return bounds[killed] + gap // 2 if killed else 0
    return total if killed == kills else bounds[killed + 1] + gap // 8
