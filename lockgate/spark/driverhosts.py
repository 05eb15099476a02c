"""The addresses at which workers reach a server of the driver's (serving/rpc.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext


def hosts_of_driver(context: SparkContext) -> dict[str, str]:
    """The driver's address for workers, and the address at which it listens: the arguments of a server."""
    conf = context._conf  # getConf() copies all settings, one call to the JVM for each
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return {"host": host, "bind": conf.get("spark.driver.bindAddress") or host}
