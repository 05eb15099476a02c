"""A trial whose job writes to a second Kafka cluster too; what is there is read and judged like the rest."""

from dataclasses import dataclass, replace
from subprocess import Popen

from kill_checker import Verdict, judge
from kill_harness import Result, Trial, scan
from kill_workloads import PARTITIONS

from lockgate.kafka.topics import create_topics


@dataclass
class ClustersTrial(Trial):
    """A job into two clusters."""

    second: str = ""

    def places(self) -> dict[str, str]:
        return {"second": self.second}

    def run(self) -> Result:
        create_topics(self.second, [self.write], partitions=PARTITIONS, where="test")
        return super().run()

    def _judge(self, topics: list[str], reader: "Popen[bytes]") -> Verdict:
        first = super()._judge(topics, reader)
        there = scan(self.second, [self.write], isolation="read_committed")
        two = judge(
            self.workload.expected(self.sent, self.write),
            seen=there,
            scanned=there,
            in_log=scan(self.second, [self.write], isolation="read_uncommitted"),
            position=self.workload.position(),
        )
        return replace(
            first,
            rows=first.rows + two.rows,
            lost=[*first.lost, *two.lost],
            duplicated=[*first.duplicated, *two.duplicated],
            disordered=[*first.disordered, *two.disordered],
            aborted=[*first.aborted, *two.aborted],
            aborted_in_log=first.aborted_in_log + two.aborted_in_log,
            unknown=[*first.unknown, *two.unknown],
        )
