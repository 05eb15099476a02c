"""References lead to values on the machine that asks, and nothing shows a value."""

import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockgate import KafkaSource, MqttSource, PostgresSink, PostgresTable
from lockgate.errors import BadJob, Refused
from lockgate.secrets import Secret, check_reference, guarded, is_reference, masked, masked_word, resolve, reveal

CANARY = "c4nary-w0rd"


def test_a_variable_and_a_file_are_read_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "dsn"
    monkeypatch.setenv("ORDERS_DSN", "first")
    kept.write_text("first\n")
    asked = ("env:ORDERS_DSN", f"file:{kept}")
    assert [resolve(one, login="test", where="test") for one in asked] == ["first", "first"]
    monkeypatch.setenv("ORDERS_DSN", "second")
    kept.write_text("second\r\n")
    assert [resolve(one, login="test", where="test") for one in asked] == ["second", "second"]


def test_other_text_is_the_value_itself() -> None:
    assert resolve("postgresql://db.example/orders", login="test", where="test") == "postgresql://db.example/orders"
    assert not is_reference("environment")


@pytest.mark.parametrize(
    "text",
    [
        "env:",
        "file:",
        "file:relative/path",
        "file:~/dsn",
        "hook:",
        "hook:vault",
        "hook:vault:",
        "hook:a b:c",
        "hook:v:f:g",
    ],
)
def test_a_reference_that_means_nothing_everywhere_is_refused_where_it_is_declared(text: str) -> None:
    with pytest.raises(BadJob) as raised:
        check_reference(text, where="PostgresSink, declared at orders.py:7")
    assert raised.value.where == "PostgresSink, declared at orders.py:7"
    assert raised.value.fix.startswith(("write env:", "write file:/", "write hook:"))


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
        resolve(f"file:{kept}", login="dsn", where="output 'orders'")
    assert str(kept) in raised.value.what
    assert "workers" in raised.value.fix
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_without_a_value_is_refused_by_its_name(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_DSN", raising=False)
    if value is not None:
        monkeypatch.setenv("ORDERS_DSN", value)
    with pytest.raises(Refused, match="env:ORDERS_DSN leads to no value"):
        resolve("env:ORDERS_DSN", login="test", where="test")


def test_a_value_is_never_resolved_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "env:SECOND")
    monkeypatch.setenv("SECOND", CANARY)
    assert resolve("env:FIRST", login="test", where="test") == "env:SECOND"


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
        f"host=db.example password=with;{CANARY} user=ada",
        f"host=db.example password=with&{CANARY} user=ada",
        f"host=db.example password=with\\ {CANARY} user=ada",
        f"host=db.example scram_client_key={CANARY} user=ada",
        f"ssl.keystore.key={CANARY}",
        f"read -----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY----- today",
        f'org.example.Module required username="bob" password="{CANARY}";',
        f"dsn=postgresql://ada:{CANARY}@db.example/orders",
        f"password={CANARY}",
        f"token={CANARY}",
        f"{{'sasl.password': '{CANARY}', 'client.id': 'orders'}}",
        f"job() failed: ValueError: cannot reach postgresql://ada:{CANARY}@db.example/orders today",
    ],
)
def test_what_people_type_is_shown_without_its_passwords(text: str) -> None:
    shown = masked(text)
    assert CANARY not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "servers=a.example:9092,b.example:9092",
        "at=2026-01-01T00:00:00",
        "env:ORDERS_DSN",
        "sasl.password=env:WORD",
        "dsn=file:/run/dsn",
        'password="hook:vault:read"',
        "ssl.key.location=/run/key.pem",
        "key=client_key",
    ],
)
def test_text_without_a_password_is_shown_as_it_is(text: str) -> None:
    assert masked(text) == masked_word(text) == text


@pytest.mark.parametrize(
    "word", ["password={}", "sasl.password={}", "--client=sasl.password={}", "-ppassword={}", "dsn=password={}"]
)
def test_a_word_of_a_command_is_shown_without_its_password(word: str) -> None:
    passphrase = CANARY if word.startswith("dsn") else f"with blanks {CANARY}"
    assert masked_word(word.format(passphrase)) == word.format("***")
    assert masked_word(word.format("env:WORD")) == word.format("env:WORD")


@pytest.mark.parametrize(
    "piece", ["://a:", "://a:b ", "password='", 'password="\\', "password ", "-----BEGIN PRIVATE KEY"]
)
def test_a_long_event_in_an_error_is_looked_at_once(piece: str) -> None:
    """Looking at the rest of the text from each place again would take hours."""
    text = piece * (500_000 // len(piece))
    began = time.process_time()
    masked(text)
    assert time.process_time() - began < 20


def hook_module(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, name: str = "vault_of_a_test") -> None:
    (folder / f"{name}.py").write_text(f"def read(login: str) -> object:\n    {body}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_hook_gets_the_name_of_the_login_and_returns_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_module(tmp_path, monkeypatch, "return f'{login}-word'")
    for login in ("dsn", "kafka://a:9092/sasl.password"):
        assert reveal(resolve("hook:vault_of_a_test:read", login=login, where="test")) == f"{login}-word"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"raise ValueError('{CANARY}')", "the function raised ValueError; its text is not shown"),
        (f"raise SystemExit('{CANARY}')", "the function raised SystemExit"),
        (f"return b'{CANARY}'", "the function returned bytes, not text"),
        ("return None", "the function returned NoneType"),
        ("return ''", "empty text"),
        (f"return '{CANARY}\\0'", "zero byte"),
        (f"return ''\n\nraise KeyError('{CANARY}')", "module 'vault_of_a_test' cannot be imported: KeyError"),
        ("return ''\n\nread = 5", "has no function 'read'"),
        ("return ''\n\nimport no_such_library", "there is no module 'no_such_library'"),
    ],
)
def test_a_hook_that_gives_no_secret_says_why_and_shows_nothing(
    body: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_module(tmp_path, monkeypatch, body)
    with pytest.raises(Refused, match="hook:vault_of_a_test:read leads to no value") as raised:
        resolve("hook:vault_of_a_test:read", login="dsn", where="output 'orders'")
    assert why in raised.value.what
    assert CANARY not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("print('not the answer'); return login + ' with \\u00fc and \\n'", "+dsn with \u00fc and \n"),
        (f"raise ValueError('{CANARY}')", "-the function raised ValueError; its text is not shown"),
    ],
)
def test_a_process_answers_a_jvm_for_a_hook(
    body: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_module(tmp_path, monkeypatch, body)
    command = [sys.executable, "-m", "lockgate.hooks", "hook:vault_of_a_test:read", "dsn"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode() == answer
    assert CANARY not in done.stderr.decode()


def test_a_secret_is_text_that_does_not_show_itself() -> None:
    secret = Secret(CANARY)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!s:>20}", "%s" % secret, repr({"a": [secret]})]  # noqa: UP031
    assert not [text for text in shown if CANARY in text]
    assert secret == CANARY
    assert reveal(secret) == CANARY
    assert type(reveal(secret)) is str
    assert reveal(Secret(secret)) == CANARY
    again = pickle.loads(pickle.dumps(secret))
    assert (type(again), again) == (Secret, CANARY)


def test_only_literal_values_of_secret_settings_are_hidden() -> None:
    settings = guarded({"password": CANARY, "other": "shown", "key": "env:KEY"}, ("password", "key"))
    assert repr(settings) == "{'password': '***', 'other': 'shown', 'key': 'env:KEY'}"
    assert settings["password"] == CANARY


def test_descriptions_hide_a_password_that_is_given_as_text() -> None:
    dsn = f"postgresql://ada:{CANARY}@db.example/orders"
    described = [
        PostgresSink(table="orders", dsn=dsn),
        PostgresTable(table="customers", dsn=dsn, schema="id INT"),
        MqttSource(topic="t", host="h", value="n INT", username="ada", password=CANARY),
        KafkaSource(topic="t", servers="s:9092", value="n INT", client={"ssl.key.password": CANARY}),
    ]
    assert [one for one in described if CANARY in repr(one)] == []
    assert [one for one in described if CANARY in str(vars(one))] == []
    assert CANARY in json.dumps(reveal(described[0].dsn))  # type: ignore[attr-defined]
