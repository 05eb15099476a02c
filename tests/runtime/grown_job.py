"""Totals of every card, from topic to topic, for a test in which topics, tasks and state grow."""

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream


def job(servers: str, name: str) -> Job:
    payments = KafkaSource(topic=f"{name}-in", servers=servers, value="id BIGINT, card STRING, amount INT")
    totals = stream("payments", payments).key_by("card").rolling(name="totals", total="sum(amount)")
    sink = KafkaSink(topic=f"{name}-out", servers=servers, key="card")
    rows = totals.select("id", "card", "total")
    return Job(name, rows.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
