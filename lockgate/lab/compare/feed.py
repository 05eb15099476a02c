"""When events may be sent: also while the driver is away, but never more than a fault needs.

    events    0 ........ bound 1 ........ bound 2 ........ all
               |  |         kill             kill
               |  until an epoch has ended with events whose latency counts
               until the first epoch has ended

The first epoch loads classes. The feed sends a few events for it and then waits for its end, so that no latency
includes loading. Then it sends half of the events up to the first bound until a latency is known. A kill is due when
the events up to its bound are sent. Until the kill has happened the feed may send an eighth of the events up to the
next bound, and half of them until the driver is back. So on a slow machine, too, events arrive after every start, and
every guarantee meets the same faults at the same places.
"""


def bounds_of(total: int, kills: int) -> tuple[int, ...]:
    """How many events are sent when each kill is due."""
    return tuple(total * (number + 1) // (kills + 1) for number in range(kills))


def may_be_sent(total: int, kills: int, *, killed: int, is_up: bool, is_warm: bool, is_measured: bool) -> int:
    """How many events may have been sent, by now.

    Args:
        is_warm: the first epoch has ended.
        is_measured: an epoch has ended with events that were sent after that.
    """
    gap = total // (kills + 1)
    bounds = (0, *bounds_of(total, kills))
    if not is_up:
        return bounds[killed] + gap // 2 if killed else 0
    if not killed and not is_measured:
        return gap // 2 if is_warm else max(1, gap // 16)
    return total if killed == kills else bounds[killed + 1] + gap // 8
