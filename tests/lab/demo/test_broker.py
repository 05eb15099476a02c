"""Borrowed services: what was running goes on, what was started is stopped by the last one who uses it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockgate.lab.demo.broker import borrow_services


class Services:
    """A stack that only remembers what runs."""

    def __init__(self, root: Path, *running: str) -> None:
        self.root, self.running, self.wanted = root / "services", {*running}, "postgres" in running
        self.kafka = SimpleNamespace(stop=lambda: self.running.discard("kafka"))
        self.postgres = SimpleNamespace(stop=lambda: self.running.discard("postgres"))

    def status(self) -> Any:
        brokers = [SimpleNamespace(running="kafka" in self.running)]
        return SimpleNamespace(
            kafka=SimpleNamespace(brokers=brokers), postgres=SimpleNamespace(running="postgres" in self.running)
        )

    def up(self, *, postgres: bool, progress: Any) -> bool:
        before = {*self.running}
        self.running |= {"kafka", "postgres"} if postgres else {"kafka"}
        self.wanted = "postgres" in self.running
        return self.running != before

    def down(self, *, progress: Any) -> bool:
        self.running.clear()
        return True


def borrow(services: Services, postgres: bool = False) -> Any:
    return borrow_services(services, lambda line: None, postgres=postgres)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [(), ("kafka",), ("postgres",), ("kafka", "postgres")])
@pytest.mark.parametrize("postgres", [False, True])
def test_only_what_was_started_is_stopped(before: tuple[str, ...], postgres: bool, tmp_path: Path) -> None:
    services = Services(tmp_path, *before)
    with borrow(services, postgres) as is_left_running:
        assert services.running >= ({"kafka", "postgres"} if postgres else {"kafka"})
        assert is_left_running == ("kafka" in before)
    assert services.running == {*before}
    if "kafka" in before:
        assert services.wanted == ("postgres" in before), "or status would say that something is missing"


def test_it_is_stopped_too_when_what_was_shown_fails(tmp_path: Path) -> None:
    services = Services(tmp_path)
    with pytest.raises(KeyboardInterrupt), borrow(services, postgres=True):
        raise KeyboardInterrupt
    assert services.running == set()


def test_the_process_that_started_it_leaves_it_to_another_that_uses_it(tmp_path: Path) -> None:
    services = Services(tmp_path)
    first, second = borrow(services), borrow(services, postgres=True)
    first.__enter__()
    assert second.__enter__() is False, "the last one stops it"
    first.__exit__(None, None, None)
    assert services.running == {"kafka", "postgres"}
    second.__exit__(None, None, None)
    assert services.running == set()


def test_what_a_killed_process_has_started_belongs_to_its_present_user(tmp_path: Path) -> None:
    (tmp_path / "borrowed").write_text("kafka\n")
    services = Services(tmp_path, "kafka")
    with borrow(services) as is_left_running:
        assert is_left_running
    assert services.running == {"kafka"}
