from datetime import timedelta

import pytest

from lockgate.lab.services.lostreplies import LostReplies


def test_a_reply_is_lost_once_and_only_for_its_kind() -> None:
    lost = LostReplies()
    reply = lost.arm("commit")
    assert lost.claim("other") is None
    assert lost.claim("commit") is reply
    assert lost.claim("commit") is None
    assert not reply.has_struck
    assert lost.strike(reply)
    assert reply.has_struck
    assert not lost.strike(reply)


def test_requests_are_skipped_one_by_one_and_several_may_be_armed() -> None:
    lost = LostReplies()
    third, second = lost.arm("commit", skip=2), lost.arm("commit", skip=1)
    assert [lost.claim("commit") for _ in range(4)] == [None, second, third, None]
    with pytest.raises(ValueError, match="-1"):
        lost.arm("commit", skip=-1)


def test_one_whose_connection_ended_waits_for_the_next_request() -> None:
    lost = LostReplies()
    reply = lost.arm("commit")
    assert lost.claim("commit") is reply
    lost.give_back(reply)
    assert not reply.has_struck
    assert lost.claim("commit") is reply


def test_one_that_is_disarmed_strikes_no_more_and_does_not_come_back() -> None:
    lost = LostReplies()
    reply, waiting = lost.arm("commit"), lost.arm("commit")
    lost.claim("commit")
    lost.disarm()
    assert not lost.strike(reply)
    lost.give_back(reply)
    assert lost.claim("commit") is None
    assert not waiting.wait(timedelta(milliseconds=1))
    assert not reply.has_struck
