"""Classes of the JVM are looked up once."""

from typing import Any

import pytest
from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lockgate.spark import names


def test_a_column_takes_one_message(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway: Any = spark.sparkContext._gateway
    client = gateway._gateway_client
    ask, asked = client.send_command, []

    def count(command: str, *more: object, **others: object) -> object:
        asked.append(command)
        return ask(command, *more, **others)

    F.col("id"), F.lit(1)
    monkeypatch.setattr(client, "send_command", count)
    F.col("id")
    F.lit(1)
    assert len([command for command in asked if command.startswith("c\n")]) == 2  # calls
    assert not [command for command in asked if command.startswith("r\n")]  # questions for a name


def test_a_name_that_is_no_class_yet_is_not_kept(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_CLASSES", ("functions", "ClassOfAJarThatComesLater"))
    jvm = spark.sparkContext._jvm
    names.keep_names(jvm)
    assert isinstance(vars(jvm)["functions"], JavaClass)
    assert "ClassOfAJarThatComesLater" not in vars(jvm)
