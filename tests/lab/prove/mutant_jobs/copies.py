"""A job without state: every order as it is, in a topic whose partitions are not those of its source."""

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream


def job() -> Job:
    """Orders by customer, and again by customer."""
    orders = stream(
        "orders", KafkaSource(topic="orders", servers="nowhere:1", key="customer STRING", value="number INT")
    )
    return Job(
        "copies",
        orders.to("copies", KafkaSink(topic="copies", servers="nowhere:1", key="customer")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )
