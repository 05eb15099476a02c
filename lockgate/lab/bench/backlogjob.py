"""The job that is far behind: a normal job file for `lockgate run`."""

from datetime import timedelta

from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.guarantees import Guarantee
from lockgate.lab.bench.settings import VALUE
from lockgate.lab.bench.state import totals

EPOCH = timedelta(seconds=1)


def job(servers: str, payments: str, out: str, name: str) -> Job:
    """The number of payments of a card so far and their sum, with every payment."""
    source = KafkaSource(topic=payments, servers=servers, key="card STRING", value=VALUE)
    made = totals(stream("payments", source).key_by("card"))
    sink = KafkaSink(topic=out, servers=servers, key="card")
    return Job(name, made.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE, epoch=EPOCH)
