"""Every fault over plain sockets: what a server got, what a client sees."""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import psutil
import pytest

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services.pipes import Direction, NotUnderstood, Ruling
from lockgate.lab.services.ports import HOST
from lockgate.lab.services.proxy import NetworkFault, Proxy
from support.waiting import wait_for

SOON = 20.0
"""What must happen is waited for so long, in seconds; it takes milliseconds."""
A_WHILE = 0.3
"""What must not happen is given so long."""


class Server:
    """A server that hands its connections to the test, which decides what it reads and says."""

    def __init__(self) -> None:
        self._door = socket.create_server((HOST, 0))
        self._came: queue.Queue[socket.socket] = queue.Queue()
        self._all: list[socket.socket] = []
        self.port: int = self._door.getsockname()[1]
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._door.accept()
                connection.settimeout(SOON)
                self._all.append(connection)
                self._came.put(connection)

    def next(self) -> socket.socket:
        """The next connection."""
        return self._came.get(timeout=SOON)

    def has_nobody(self) -> bool:
        """Whether nobody comes for a while."""
        try:
            self._came.get(timeout=A_WHILE)
        except queue.Empty:
            return True
        return False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self._thread.join()
        for connection in self._all:
            connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Callable[[], socket.socket]]:
    """Opens clients of the proxy."""
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(socket.create_connection((HOST, proxy.port), timeout=SOON))


Connect = Callable[[], socket.socket]


def read(end: socket.socket, count: int) -> bytes:
    """So many bytes; fewer only where the other end has said all."""
    found = bytearray()
    while len(found) < count and (piece := end.recv(count - len(found))):
        found += piece
    return bytes(found)


def is_silent(end: socket.socket) -> bool:
    """Whether nothing at all comes for a while, neither bytes nor an end."""
    end.settimeout(A_WHILE)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(SOON)
    return False


def reset_by_hand(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


# -- without a fault ----------------------------------------------------------------------------------------------


def test_bytes_pass_both_ways_on_any_number_of_connections_and_are_counted(
    server: Server, proxy: Proxy, connect: Connect
) -> None:
    clients = [connect() for _ in range(20)]
    for number, client in enumerate(clients):
        client.sendall(b"%02d" % number)
    sides = [server.next() for _ in clients]
    for side in sides:
        number = read(side, 2)
        side.sendall(number + b" heard")
    assert [read(client, 8) for client in clients] == [b"%02d heard" % number for number in range(20)]
    wait_for("all bytes", lambda: proxy.counts.to_client_bytes == 20 * 8)  # a reader may be quicker than the counting
    counts = proxy.counts
    assert (counts.accepted_count, counts.open_count) == (20, 20)
    assert (counts.to_server_bytes, counts.swallowed_bytes) == (40, 0)


def test_a_half_that_is_closed_leaves_the_other_open(server: Server, proxy: Proxy, connect: Connect) -> None:
    client = connect()
    client.sendall(b"all I have to say")
    client.shutdown(socket.SHUT_WR)
    side = server.next()
    assert read(side, 1000) == b"all I have to say"
    side.sendall(b"and the answer")
    side.close()
    assert read(client, 1000) == b"and the answer"
    wait_for("the end of all connections", lambda: proxy.counts.open_count == 0)
    assert proxy.counts.reset_count == 0


def test_a_reader_that_is_slow_gets_every_byte_and_holds_up_the_writer(
    server: Server, proxy: Proxy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.lab.services.pipes.QUEUED_BYTES_MAX", 100_000)
    client = connect()
    data = b"".join(b"%08d" % number for number in range(4_000_000))
    writer = threading.Thread(target=client.sendall, args=(data,))
    writer.start()
    side = server.next()
    writer.join(timeout=A_WHILE)
    assert writer.is_alive(), "what nobody reads was taken in without limit"
    assert read(side, len(data)) == data
    writer.join()


@pytest.mark.parametrize("dying", ["client", "server"])
def test_the_reset_of_one_end_reaches_the_other(server: Server, proxy: Proxy, connect: Connect, dying: str) -> None:
    client = connect()
    client.sendall(b"x")
    side = server.next()
    read(side, 1)
    end, other = (client, side) if dying == "client" else (side, client)
    reset_by_hand(end)
    with pytest.raises(ConnectionResetError):
        other.recv(1)
    assert proxy.counts.reset_count == 1


def test_a_client_of_a_server_that_is_away_is_reset_and_counted_as_refused(server: Server) -> None:
    server.close()
    with Proxy(server.port) as proxy:
        with pytest.raises(ConnectionResetError), socket.create_connection((HOST, proxy.port), timeout=SOON) as client:
            client.recv(1)
        assert (proxy.counts.refused_count, proxy.counts.open_count) == (1, 0)


# -- faults -------------------------------------------------------------------------------------------------------


def test_a_cut_holds_both_ways_and_what_hung_comes_after_healing(
    server: Server, proxy: Proxy, connect: Connect
) -> None:
    client = connect()
    client.sendall(b"before")
    side = server.next()
    assert read(side, 6) == b"before"
    proxy.cut()
    client.sendall(b"asked in the dark")
    side.sendall(b"answered in the dark")
    assert is_silent(side)
    assert is_silent(client)
    proxy.heal()
    assert read(side, 17) == b"asked in the dark"
    assert read(client, 20) == b"answered in the dark"


@pytest.mark.parametrize("direction", [Direction.TO_SERVER, Direction.TO_CLIENT])
def test_a_cut_of_one_direction_leaves_the_other(
    server: Server, proxy: Proxy, connect: Connect, direction: Direction
) -> None:
    client = connect()
    side = server.next()
    proxy.cut(direction)
    client.sendall(b"asked")
    side.sendall(b"answered")
    hung, open_end = (side, client) if direction is Direction.TO_SERVER else (client, side)
    assert read(open_end, 5) == (b"answe" if open_end is client else b"asked")
    assert is_silent(hung)
    proxy.heal()
    assert read(hung, 5) == (b"answe" if hung is client else b"asked")


def test_a_cut_hides_the_end_of_a_connection_too(server: Server, proxy: Proxy, connect: Connect) -> None:
    client = connect()
    side = server.next()
    proxy.cut()
    side.close()
    assert is_silent(client)
    proxy.heal()
    assert client.recv(1) == b""


@pytest.mark.parametrize("direction", [Direction.TO_SERVER, Direction.TO_CLIENT, Direction.BOTH])
def test_a_connection_made_during_a_cut_hangs_and_continues_after_it(
    server: Server, proxy: Proxy, connect: Connect, direction: Direction
) -> None:
    proxy.cut(direction)
    client = connect()
    client.sendall(b"hello")
    assert server.has_nobody()
    proxy.heal()
    assert read(server.next(), 5) == b"hello"


def test_a_reset_is_seen_at_both_ends_of_all_connections(server: Server, proxy: Proxy, connect: Connect) -> None:
    clients = [connect() for _ in range(3)]
    sides = [server.next() for _ in clients]
    assert proxy.reset() == 3
    for end in (*clients, *sides):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert (proxy.counts.reset_count, proxy.counts.open_count) == (3, 0)
    again = connect()
    again.sendall(b"again")
    assert read(server.next(), 5) == b"again"


def test_a_reset_reaches_connections_that_hang_in_a_cut(server: Server, proxy: Proxy, connect: Connect) -> None:
    old = connect()
    server.next()
    proxy.cut()
    new = connect()
    wait_for("two connections", lambda: proxy.counts.accepted_count == 2)
    assert proxy.reset() == 2
    for client in (old, new):
        with pytest.raises(ConnectionResetError):
            client.recv(1)


@pytest.mark.parametrize("direction", [Direction.TO_SERVER, Direction.TO_CLIENT])
def test_a_delay_holds_up_one_direction_by_its_length_and_keeps_the_order(
    server: Server, proxy: Proxy, connect: Connect, direction: Direction
) -> None:
    client = connect()
    side = server.next()
    proxy.delay(timedelta(seconds=A_WHILE), direction)
    sender, receiver = (client, side) if direction is Direction.TO_SERVER else (side, client)
    receiver.sendall(b"the other way")
    assert read(sender, 13) == b"the other way"
    began = time.monotonic()
    expected = b""
    for number in range(10):
        sender.sendall(b"%02d" % number)
        expected += b"%02d" % number
        time.sleep(0.01)  # pieces of their own
    sender.shutdown(socket.SHUT_WR)
    assert receiver.recv(1) == b"0"
    assert time.monotonic() - began >= A_WHILE
    assert b"0" + read(receiver, 1000) == expected


def test_healing_lets_go_at_once_of_what_a_delay_holds(server: Server, proxy: Proxy, connect: Connect) -> None:
    client = connect()
    side = server.next()
    proxy.delay(timedelta(hours=1))
    client.sendall(b"held")
    assert is_silent(side)
    proxy.heal()
    assert read(side, 4) == b"held"


def test_a_shorter_delay_counts_from_when_the_bytes_came(server: Server, proxy: Proxy, connect: Connect) -> None:
    client = connect()
    side = server.next()
    proxy.delay(timedelta(hours=1))
    client.sendall(b"held")
    assert is_silent(side)
    proxy.delay(timedelta(milliseconds=1))
    assert read(side, 4) == b"held"


def test_a_delay_takes_in_no_more_than_its_limit(
    server: Server, proxy: Proxy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.lab.services.pipes.QUEUED_BYTES_MAX", 1_000_000)
    client = connect()
    side = server.next()
    proxy.delay(timedelta(hours=1))
    data = bytes(30_000_000)
    writer = threading.Thread(target=client.sendall, args=(data,))
    writer.start()
    writer.join(timeout=A_WHILE)
    assert writer.is_alive()
    proxy.heal()
    assert len(read(side, len(data))) == len(data)
    writer.join()


def test_more_than_that_limit_passes_while_the_delay_lasts(
    server: Server, proxy: Proxy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.lab.services.pipes.QUEUED_BYTES_MAX", 1_000_000)
    client = connect()
    side = server.next()
    proxy.delay(timedelta(milliseconds=10))
    data = b"".join(b"%08d" % number for number in range(1_000_000))
    writer = threading.Thread(target=client.sendall, args=(data,))
    writer.start()
    assert read(side, len(data)) == data
    writer.join()


def test_a_delay_that_is_negative_is_refused(proxy: Proxy) -> None:
    with pytest.raises(ValueError, match="past"):
        proxy.delay(timedelta(seconds=-1))


def test_a_lost_reply_leaves_the_request_in_force_and_the_client_without_a_byte(
    server: Server, proxy: Proxy, connect: Connect
) -> None:
    client = connect()
    side = server.next()
    proxy.lose_replies()
    client.sendall(b"book it")
    assert read(side, 7) == b"book it"
    assert is_silent(client), "before the server has replied, nothing is wrong"
    side.sendall(b"booked")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionResetError):
        side.recv(1)
    assert (proxy.counts.swallowed_bytes, proxy.counts.to_client_bytes) == (6, 0)
    proxy.heal()
    again = connect()
    side = server.next()
    side.sendall(b"heard")
    assert read(again, 5) == b"heard"


def test_refusing_turns_new_clients_away_leaves_present_ones_and_keeps_the_port(
    server: Server, proxy: Proxy, connect: Connect
) -> None:
    client = connect()
    side = server.next()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect()
    with pytest.raises(OSError, match="in use"), socket.socket() as stranger:
        stranger.bind((HOST, proxy.port))
    client.sendall(b"still here")
    assert read(side, 10) == b"still here"
    proxy.heal()
    connect().sendall(b"new")
    assert read(server.next(), 3) == b"new"


def test_one_fault_is_healed_and_the_others_stay(server: Server, proxy: Proxy, connect: Connect) -> None:
    client = connect()
    side = server.next()
    proxy.cut(Direction.TO_SERVER)
    proxy.lose_replies()
    proxy.refuse()
    client.sendall(b"asked")
    proxy.heal(NetworkFault.CUT)
    assert read(side, 5) == b"asked"
    with pytest.raises(ConnectionRefusedError):
        connect()
    side.sendall(b"answered")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert proxy.faults.is_refusing
    assert proxy.faults.are_replies_lost
    assert not proxy.faults.cut


def test_verbs_from_many_threads_while_bytes_flow_lose_none(server: Server, proxy: Proxy, connect: Connect) -> None:
    client = connect()
    side = server.next()
    data = b"".join(b"%08d" % number for number in range(500_000))
    is_done = threading.Event()

    def disturb() -> None:
        while not is_done.is_set():
            proxy.cut()
            proxy.delay(timedelta(milliseconds=1))
            proxy.refuse()
            proxy.heal()

    threads = [threading.Thread(target=disturb) for _ in range(3)]
    writer = threading.Thread(target=client.sendall, args=(data,))
    for thread in (*threads, writer):
        thread.start()
    try:
        assert read(side, len(data)) == data
    finally:
        is_done.set()
        for thread in (*threads, writer):
            thread.join()


# -- the inspector ------------------------------------------------------------------------------------------------


class Censor:
    """Swallows whatever stands behind a bar, and resets at a full stop; reads no capitals; dies of a skull."""

    def __init__(self) -> None:
        self.is_closed = False

    def request(self, data: bytes) -> None:
        if b"!" in data:
            raise RuntimeError("a mistake in the inspector")
        if data.isupper():
            raise NotUnderstood

    def reply(self, data: bytes) -> Ruling:
        return Ruling(len(data.split(b"|")[0]), is_reset=b"." in data)

    def close(self) -> None:
        self.is_closed = True


def test_an_inspector_rules_on_what_passes_and_when_it_ends(server: Server) -> None:
    censors: list[Censor] = []

    def hire() -> Censor:
        censors.append(Censor())
        return censors[-1]

    with (
        Proxy(server.port, inspect=hire) as proxy,
        socket.create_connection((HOST, proxy.port), timeout=SOON) as client,
    ):
        side = server.next()
        side.sendall(b"seen|unseen")
        assert read(client, 4) == b"seen"
        assert is_silent(client)
        side.sendall(b"last|.")
        assert read(client, 4) == b"last"
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert proxy.counts.swallowed_bytes == len("|unseen" + "|.")
    assert [censor.is_closed for censor in censors] == [True]


def test_what_an_inspector_cannot_read_is_reset_and_does_not_pass(server: Server) -> None:
    with (
        Proxy(server.port, inspect=Censor) as proxy,
        socket.create_connection((HOST, proxy.port), timeout=SOON) as client,
    ):
        side = server.next()
        client.sendall(b"SHOUTED")
        for end in (client, side):
            with pytest.raises(ConnectionResetError):
                end.recv(1)
        assert (proxy.counts.not_understood_count, proxy.counts.to_server_bytes) == (1, 0)


class Sleeper(Censor):
    """Holds up the whole proxy at its first request."""

    asleep, awake = threading.Event(), threading.Event()

    def request(self, data: bytes) -> None:
        self.asleep.set()
        self.awake.wait(SOON)


def test_a_client_that_comes_in_the_very_moment_of_refusing_does_not_break_the_proxy(server: Server) -> None:
    with (
        Proxy(server.port, inspect=Sleeper) as proxy,
        socket.create_connection((HOST, proxy.port), timeout=SOON) as first,
    ):
        first.sendall(b"x")
        assert Sleeper.asleep.wait(SOON)
        refusing = threading.Thread(target=proxy.refuse)
        refusing.start()
        wait_for("an order", lambda: len(proxy._orders) == 1)
        with proxy._lock:  # the bell has rung, too
            pass
        second = socket.create_connection((HOST, proxy.port), timeout=SOON)
        Sleeper.awake.set()  # wakes up to both, the order first
        refusing.join()
        with pytest.raises(ConnectionResetError), second:
            second.recv(1)
        assert read(server.next(), 1) == b"x"
        assert proxy.counts.accepted_count == 1


def test_a_failure_of_the_proxy_itself_is_reported_to_the_next_caller(server: Server) -> None:
    proxy = Proxy(server.port, inspect=Censor)
    with socket.create_connection((HOST, proxy.port), timeout=SOON) as client:
        server.next()
        client.sendall(b"!")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    wait_for("the end of the thread", lambda: not proxy._thread.is_alive())
    with pytest.raises(ServiceFailed, match="a mistake in the inspector"):
        proxy.cut()
    with pytest.raises(ServiceFailed, match="a mistake in the inspector"):
        proxy.close()


# -- the end ------------------------------------------------------------------------------------------------------


def test_closing_leaves_no_thread_and_no_socket(server: Server) -> None:
    process = psutil.Process()
    threads, files = threading.active_count(), process.num_fds()
    proxy = Proxy(server.port)
    assert threading.active_count() == threads + 1
    client = socket.create_connection((HOST, proxy.port), timeout=SOON)
    side = server.next()
    proxy.cut()
    hanging = socket.create_connection((HOST, proxy.port), timeout=SOON)
    wait_for("two connections", lambda: proxy.counts.open_count == 2)
    proxy.close()
    proxy.close()
    for end in (client, side, hanging):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
        end.close()
    assert threading.active_count() == threads
    assert process.num_fds() == files
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, proxy.port), timeout=SOON)
    with pytest.raises(ServiceFailed, match="is closed"):
        proxy.heal()
    assert proxy.counts.accepted_count == 2


def test_a_given_port_is_used_and_one_that_is_taken_is_refused(server: Server, proxy: Proxy) -> None:
    with pytest.raises(BadMachine, match=f"Port {proxy.port}"):
        Proxy(server.port, port=proxy.port)
    port = proxy.port
    proxy.close()
    with Proxy(server.port, port=port) as again:
        assert again.port == port
