"""The local HDFS: where it lives, and what it says when it cannot; tests/files kills its nodes."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services.hdfs import new_hdfs, settings


def test_everything_listens_on_the_loopback_interface_and_writes_below_its_directory(tmp_path: Path) -> None:
    found = settings(new_hdfs(tmp_path))
    addresses = [value for name, value in found.items() if name.endswith("address")]
    assert len(addresses) == 4
    assert all(str(address).startswith("127.0.0.1:") for address in addresses)
    assert str(found["fs.defaultFS"]).startswith("hdfs://127.0.0.1:")
    places = [value for name, value in found.items() if name.endswith(".dir")]
    assert len(places) == 3
    assert all(str(tmp_path) in str(place) for place in places)


def test_a_port_that_is_taken_is_refused_with_the_fix(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        hdfs = replace(new_hdfs(tmp_path), port=stranger.getsockname()[1])
        with pytest.raises(BadMachine, match=r"wanted by the name-node of HDFS, is taken"):
            hdfs.start()


@pytest.mark.system
def test_a_node_that_cannot_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    hdfs = new_hdfs(tmp_path)
    (tmp_path / "name-node" / "names").mkdir(parents=True)  # there, but nothing in it
    try:
        hdfs.start()
        with pytest.raises(
            ServiceFailed, match=r"name-node of HDFS ended right after its start[\s\S]*not formatted"
        ) as told:
            hdfs.wait()
        assert told.value.where.endswith("name-node.log")
    finally:
        hdfs.stop()
    assert hdfs.name_node.pid is hdfs.data_node.pid is None
