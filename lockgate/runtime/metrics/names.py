"""The names by which metrics know the parts of a query."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

from lockgate.dataflow.locations import topics_among
from lockgate.dataflow.steps import DeadLetterStep, LateEvents, Read, TimedOut, Write
from lockgate.planner.plan import Plan
from lockgate.runtime.metrics.figures import Names
from lockgate.spark.compile import Compiled


def names_of(planned: Plan, compiled: Compiled) -> Names:
    """The names of a query's parts in metrics."""
    nodes = planned.logical.nodes
    reads = [(node.name, node.step.source) for node in nodes if isinstance(node.step, Read)]
    texts = [(level, text, name) for name, source in reads for level, text in enumerate(source.reported_as)]
    sources = {text: name for _, text, name in sorted(texts, key=itemgetter(0))}  # the first that matches counts
    # Spark's names for other sources say little. If there is only one, it must be the one that is left.
    others = [name for name, source in reads if not source.reported_as]
    sources |= {"": others[0]} if len(others) == 1 else {f"[{name}]": name for name in others}
    topics = [
        (topic.name, one.name)
        for one in compiled.outputs
        if one.is_exact
        for topic in topics_among([one.sink])
        if topic.name is not None
    ]
    times = Counter(topic for topic, _ in topics)
    return Names(
        sources=sources,
        steps=compiled.stateful,
        # The input of an output, and of a side output (late events, dead letters), is counted there.
        inputs={
            node.name: node.inputs
            for node in nodes
            if node.inputs and not isinstance(node.step, Write | DeadLetterStep | LateEvents | TimedOut)
        },
        outputs={one.tag or 0: one.name for one in compiled.counted},
        topics={topic: name for topic, name in topics if times[topic] == 1},
    )
