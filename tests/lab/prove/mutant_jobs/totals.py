"""A job that goes by order: every order with the sum of its customer's orders so far."""

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream


def job() -> Job:
    """Orders are dealt out to tasks before they meet again by customer, and so come out of order."""
    orders = stream(
        "orders", KafkaSource(topic="orders", servers="nowhere:1", key="customer STRING", value="number INT")
    )
    totals = orders.parallel(3).key_by("customer").rolling(total="sum(number)")
    return Job(
        "totals",
        totals.to("totals", KafkaSink(topic="totals", servers="nowhere:1", key="customer")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )
