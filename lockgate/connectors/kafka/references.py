"""A job's `client=` for Spark's Kafka connector: Java's names, and references instead of secrets.

    in the job                       in the options of Spark's source or writer
    "ssl.key.password": "env:WORD"   kafka.ssl.key.password = ${lockgate:text:env:WORD}
    "sasl.username": "bob",          kafka.sasl.jaas.config = MODULE required username="bob"
    "sasl.password": "env:WORD"          password="${lockgate:quoted:env:WORD}";

When Kafka's client is constructed, in the JVM of the driver and of each executor, it asks a config provider for the
value of such a text: ours, provision/References.java. So plans, Spark's configuration, its event log and tasks contain
the reference. `quoted` escapes a value for the quotes of a login.

This works since Kafka 2.4, whose clients resolve settings themselves; the connector brings Kafka 3.9. In a JVM with
-Dorg.apache.kafka.automatic.config.providers=none Kafka's client refuses the settings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from urllib.parse import quote

from lockgate.connectors.kafka.allowlist import PLACEHOLDER, REFERABLE
from lockgate.connectors.kafka.jaas import MODULES, find_login, quoted, write_login
from lockgate.connectors.kafka.settings import login_name
from lockgate.errors import BadJob
from lockgate.modulepath import module_path
from lockgate.secrets import is_reference, reveal

_PROVIDER = {"kafka.config.providers": "lockgate", "kafka.config.providers.lockgate.class": "lockgate.References"}
_PARAMETER = "kafka.config.providers.lockgate.param."


def spark_options(client: Mapping[str, str], servers: str, *, where: str) -> dict[str, str]:
    """The options of Spark's Kafka connector for the settings of a job, which were checked before.

    If the job gives a value as text, the options contain it as text: nothing else would reach the JVMs.
    """
    given = {name.removeprefix("kafka."): reveal(text) for name, text in client.items()}
    made = {name: text for name, text in given.items() if name not in ("sasl.username", "sasl.password")}
    login = find_login(given, where) if "sasl.mechanism" in given else None
    if login is not None:
        values = {"sasl.username": login.user, "sasl.password": reveal(login.password)}
        if any(map(is_reference, values.values())):
            _refuse_shaded(login.module, where)
        if "sasl.jaas.config" not in made or any(map(is_reference, values.values())):
            user, password = (
                _placeholder("quoted", text, name, servers) if is_reference(text) else quoted(text)
                for name, text in values.items()
            )
            made["sasl.jaas.config"] = write_login(login.module, user, password)
    for name in REFERABLE & made.keys():
        if is_reference(made[name]):
            made[name] = _placeholder("text", made[name], name, servers)
    options = {f"kafka.{name}": text for name, text in made.items()}
    if any(PLACEHOLDER in text for text in made.values()):
        # A hook is a Python function. The JVM of the driver starts it with these; JVMs elsewhere use their own.
        options |= {
            **_PROVIDER,
            f"{_PARAMETER}python": sys.executable,
            f"{_PARAMETER}path": module_path(),
            f"{_PARAMETER}executor.python": os.environ.get("PYSPARK_PYTHON", "python3"),
        }
    return options


def _placeholder(how: str, reference: str, name: str, servers: str) -> str:
    """The text that our provider replaces: the form of the value, and after a question mark the name of the login."""
    asked = f"?{quote(login_name(servers, name), safe='')}" if reference.startswith("hook:") else ""
    return f"{PLACEHOLDER}{how}:{quote(reference, safe='/:')}{asked}}}"


def _refuse_shaded(module: str, where: str) -> None:
    if module not in MODULES.values():
        raise BadJob(
            f"a reference does not work with the login module {module}: its Kafka client has names of its own, and"
            " would not find the class that resolves references",
            where=where,
            fix="use Kafka's own module, with the connector that Lockgate brings",
        )
