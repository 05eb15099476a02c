"""Which messages are acknowledged, and when: against a broker that is a model, with every order of events."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.connectors.mqtt.inbox import Inbox, Message


def message(text: str, mid: int = 0, topic: str = "plant") -> Message:
    return Message(topic=topic, payload=text.encode(), at_ms=0, is_retained=False, mid=mid)


def received(*texts: str) -> Inbox:
    inbox = Inbox()
    inbox.connect(is_session_kept=False)
    for mid, text in enumerate(texts, start=1):
        assert inbox.receive(message(text, mid), is_repeated=False) == []
    return inbox


def texts(inbox: Inbox, start: int, end: int) -> list[tuple[int, str]]:
    return [(number, one.payload.decode()) for number, one in inbox.numbered(start, end)]


def test_messages_are_numbered_in_order_and_acknowledged_when_their_epoch_is_complete() -> None:
    inbox = received("a", "b", "c")
    assert inbox.number(0, 2) == 2
    assert texts(inbox, 0, 2) == [(0, "a"), (1, "b")]
    assert inbox.complete(0) == []
    assert inbox.complete(2) == [1, 2]
    assert inbox.complete(2) == []
    assert inbox.number(2, 2) == 3
    assert texts(inbox, 2, 3) == [(2, "c")]


def test_asking_twice_for_the_same_epoch_gives_the_same() -> None:
    inbox = received("a", "b")
    assert (inbox.number(0, 10), inbox.number(0, 10)) == (2, 2)
    assert texts(inbox, 0, 2) == texts(inbox, 0, 2) == [(0, "a"), (1, "b")]


def test_numbers_continue_after_an_epoch_that_a_dead_driver_planned() -> None:
    inbox = received("a")
    assert texts(inbox, 5, 8) == []
    assert inbox.complete(8) == []
    assert inbox.number(8, 10) == 9
    assert texts(inbox, 8, 9) == [(8, "a")]


def test_a_message_that_comes_again_keeps_its_number_and_is_answered_once() -> None:
    inbox = received("a", "b")
    inbox.number(0, 1)
    inbox.connect(is_session_kept=True)
    assert inbox.complete(1) == []  # the connection that brought it is gone
    assert inbox.receive(message("a", 1), is_repeated=True) == [1]
    assert inbox.receive(message("b", 2), is_repeated=True) == []
    assert inbox.number(1, 10) == 2
    assert texts(inbox, 1, 2) == [(1, "b")]
    assert inbox.complete(2) == [2]


def test_a_broker_that_lost_the_session_hears_nothing_about_messages_of_the_old_one() -> None:
    inbox = received("a")
    inbox.number(0, 10)
    inbox.connect(is_session_kept=False)
    assert inbox.receive(message("b", 1), is_repeated=False) == []
    assert inbox.complete(1) == []  # 1 is the identifier of b now
    assert inbox.number(1, 10) == 2
    assert inbox.complete(2) == [1]


def test_the_same_text_under_the_same_identifier_is_a_new_message_unless_the_broker_says_otherwise() -> None:
    inbox = received("on")
    inbox.number(0, 10)
    inbox.connect(is_session_kept=True)
    inbox.receive(message("on", 1), is_repeated=False)
    assert inbox.complete(1) == []
    assert inbox.number(1, 10) == 2
    assert inbox.complete(2) == [1]


def test_what_a_new_session_sends_again_is_no_message_of_the_old_one() -> None:
    inbox = received("on")
    inbox.number(0, 10)
    inbox.connect(is_session_kept=False)
    inbox.connect(is_session_kept=True)  # the new session's first message under 1 was lost with a connection
    assert inbox.receive(message("on", 1), is_repeated=True) == []
    assert inbox.number(1, 10) == 2
    assert inbox.complete(2) == [1]


def test_what_needs_no_acknowledgement_gets_none() -> None:
    inbox = Inbox()
    inbox.receive(message("a"), is_repeated=False)
    assert inbox.number(0, 10) == 1
    assert inbox.complete(1) == []


@dataclass
class ModelBroker:
    """A session at a broker: what is in flight under which identifier, and has it been sent before?"""

    next_mid: int = 0
    flying: dict[int, str] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)

    def publish(self, text: str) -> int:
        while True:  # identifiers are few, so they are used again soon
            self.next_mid = self.next_mid % 4 + 1
            if self.next_mid not in self.flying:
                self.flying[self.next_mid] = text
                return self.next_mid

    def acknowledge(self, mids: list[int]) -> None:
        for mid in mids:
            self.acknowledged.add(self.flying.pop(mid))  # a KeyError: nobody waits for this one
            self.sent.discard(mid)


@settings(max_examples=500)
@given(st.lists(st.sampled_from(["publish", "plan", "complete", "cut", "cut and lose", "crash"]), max_size=60))
def test_nothing_is_acknowledged_before_it_is_complete_and_all_that_the_broker_kept_is_emitted(
    events: list[str],
) -> None:
    broker, inbox = ModelBroker(), Inbox()
    inbox.connect(is_session_kept=False)
    start = end = count = 0
    out: Counter[str] = Counter()
    lost_by_broker: set[str] = set()

    def deliver(mid: int) -> None:
        is_repeated = mid in broker.sent
        broker.sent.add(mid)
        broker.acknowledge(inbox.receive(message(broker.flying[mid], mid), is_repeated=is_repeated))

    def complete() -> None:
        nonlocal start
        out.update(text for _, text in texts(inbox, start, end))
        start = end
        broker.acknowledge(inbox.complete(start))
        assert broker.acknowledged <= out.keys()

    for event in [*events, "plan", "complete", "cut", "plan", "complete"]:
        if event == "publish" and len(broker.flying) < 4:
            deliver(broker.publish(f"text {count}"))
            count += 1
        elif event == "plan":
            end = inbox.number(start, 3) if start == end else end
        elif event == "complete":
            complete()
        elif event in ("cut", "cut and lose", "crash"):
            if event == "cut and lose":
                lost_by_broker |= set(broker.flying.values())
                broker.flying.clear()
                broker.sent.clear()
            if event == "crash":
                inbox = Inbox()
            inbox.connect(is_session_kept=event != "cut and lose")
            for mid in list(broker.flying):
                deliver(mid)
    while inbox.waiting or start != end:
        end = inbox.number(start, 3)
        complete()
    kept = {f"text {number}" for number in range(count)} - lost_by_broker
    assert kept <= out.keys()
    if "crash" not in events:
        assert kept | lost_by_broker == out.keys()  # what had reached us is not lost with the broker's session
        assert set(out.values()) <= {1}
    assert not broker.flying
