"""The jars with which Spark reads and writes Kafka: its connector, and our class that resolves references.

References.java is compiled beside Kafka's own client, once, and travels to executors as the connector does.
"""

from __future__ import annotations

from pathlib import Path

from lockgate.provision.compiling import compiled
from lockgate.provision.jars import Progress, connector_jars
from lockgate.provision.java import find_java


def kafka_jars(progress: Progress | None = None) -> list[Path]:
    """The jars to give to Spark as `spark.jars`."""
    connector = connector_jars(progress)
    return [*connector, compiled(find_java(), Path(__file__).with_name("References.java"), beside=connector)]
