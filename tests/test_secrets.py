"""References lead to values on the machine that asks, and nothing shows a value."""

from pathlib import Path

import pytest

from lockgate.errors import BadJob, Refused
from lockgate.secrets import check_reference, is_reference, masked, resolve

CANARY = "c4nary-w0rd"


def test_a_variable_and_a_file_are_read_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "dsn"
    monkeypatch.setenv("ORDERS_DSN", "first")
    kept.write_text("first\n")
    asked = ("env:ORDERS_DSN", f"file:{kept}")
    assert [resolve(one, where="test") for one in asked] == ["first", "first"]
    monkeypatch.setenv("ORDERS_DSN", "second")
    kept.write_text("second\r\n")
    assert [resolve(one, where="test") for one in asked] == ["second", "second"]


def test_other_text_is_the_value_itself() -> None:
    assert resolve("postgresql://db.example/orders", where="test") == "postgresql://db.example/orders"
    assert not is_reference("environment")


@pytest.mark.parametrize("text", ["env:", "file:", "file:relative/path", "file:~/dsn"])
def test_a_reference_that_means_nothing_everywhere_is_refused_where_it_is_declared(text: str) -> None:
    with pytest.raises(BadJob) as raised:
        check_reference(text, where="PostgresSink, declared at orders.py:7")
    assert raised.value.where == "PostgresSink, declared at orders.py:7"
    assert raised.value.fix.startswith(("write env:", "write file:/"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b"\n", "empty"),
        (b"\xff" + CANARY.encode(), "not UTF-8"),
        (CANARY.encode() + b"\0", "zero byte"),
        (CANARY.encode() * 10_000, "more than 64 kB"),
    ],
)
def test_a_file_that_holds_no_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes | None, why: str) -> None:
    kept = tmp_path / "dsn"
    if content is not None:
        kept.write_bytes(content)
    with pytest.raises(Refused, match=why) as raised:
        resolve(f"file:{kept}", where="output 'orders'")
    assert str(kept) in raised.value.what
    assert "workers" in raised.value.fix
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_without_a_value_is_refused_by_its_name(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_DSN", raising=False)
    if value is not None:
        monkeypatch.setenv("ORDERS_DSN", value)
    with pytest.raises(Refused, match="env:ORDERS_DSN leads to no value"):
        resolve("env:ORDERS_DSN", where="test")


def test_a_value_is_never_resolved_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "env:SECOND")
    monkeypatch.setenv("SECOND", CANARY)
    assert resolve("env:FIRST", where="test") == "env:SECOND"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ada:{CANARY}@db.example:5432/orders",
        f"postgresql://ada:{CANARY}@a,b/orders?sslmode=disable",
        f"postgresql://ada:with@{CANARY}@db.example/orders",
        f"postgresql://ada:with/{CANARY}@db.example/orders",
        f"postgresql://db.example/orders?user=ada&password={CANARY}&sslmode=require",
        f"host=db.example password={CANARY} user=ada",
        f"host=db.example password = 'with space \\' {CANARY}' user=ada",
        f'org.example.Module required username="bob" password="{CANARY}";',
        f"dsn=postgresql://ada:{CANARY}@db.example/orders",
        f"password={CANARY}",
        f"job() failed: ValueError: cannot reach postgresql://ada:{CANARY}@db.example/orders today",
    ],
)
def test_what_people_type_is_shown_without_its_passwords(text: str) -> None:
    shown = masked(text)
    assert CANARY not in shown
    assert "***" in shown


@pytest.mark.parametrize("text", ["servers=a.example:9092,b.example:9092", "at=2026-01-01T00:00:00", "env:ORDERS_DSN"])
def test_text_without_a_password_is_shown_as_it_is(text: str) -> None:
    assert masked(text) == text
