import random
import socket

import pytest

from lockgate.errors import BadMachine
from lockgate.lab.services import ports


def test_chosen_ports_are_free_distinct_and_never_those_of_outgoing_connections() -> None:
    chosen = ports.choose(20, random.Random(7))
    assert len(set(chosen)) == 20
    assert all(ports.is_free(port) for port in chosen)
    begin = ports._outgoing_begins()
    assert all(port < begin for port in chosen) or begin < 11_000


def test_ports_that_are_spoken_for_are_not_chosen_again() -> None:
    first = ports.choose(5, random.Random(7))
    assert not set(ports.choose(5, random.Random(7), taken=first)) & set(first)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_a_stranger_listens_on_is_refused_with_the_fix(address: str) -> None:
    with socket.create_server((address, 0)) as stranger:
        port = stranger.getsockname()[1]
        assert not ports.is_free(port)
        with pytest.raises(BadMachine, match=rf"Port {port}, wanted by Kafka[\s\S]*--kafka-port"):
            ports.require_free(port, "Kafka", "--kafka-port")


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(BadMachine, match="is no port"):
        ports.require_free(port, "Kafka", "--kafka-port")
