"""A live job with metrics: what was sent is what is shown, health goes with the broker, and a restart is counted."""

import gzip
import itertools
import json
import os
import re
import signal
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from prometheus_client.parser import text_string_to_metric_families

from lockgate.connectors.kafka.topics import create_topics
from lockgate.lab.services.stack import Stack
from lockgate.presenter.figures import METRICS as PRESENTER_METRICS
from lockgate.runtime.metrics.figures import METRICS
from support import records
from support.process import LOCKGATE, Process, parameters, running

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docs" / "grafana" / "lockgate.json"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

JOB = """
    from datetime import timedelta
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Late, stream, windows

    PAYMENT = "id INT, user STRING, amount INT, at TIMESTAMP"

    def check(row):
        if row.amount < 0:
            raise ValueError(f"{row.amount} is less than nothing")
        return {"id": row.id, "user": row.user, "amount": row.amount, "at": row.at}

    def rate(row) -> float:
        return row.amount / 100

    def job(servers: str, read: str, sums: str, late: str, large: str, letters: str) -> Job:
        checked = stream("payments", KafkaSource(topic=read, servers=servers, value=PAYMENT)).map(check, PAYMENT)
        summed = (
            checked.event_time("at", lateness=timedelta(0), late=Late.TO_SIDE_OUTPUT)
            .key_by("user")
            .window(windows.tumbling(timedelta(seconds=10)), name="sums-of-users")
            .aggregate(total="sum(amount)")
        )
        return Job(
            "metered",
            summed.to("sums", KafkaSink(topic=sums, servers=servers, key="user")),
            summed.late.to("late", KafkaSink(topic=late, servers=servers, key="user")),
            checked.where("amount >= 50").fan_out(deadline="1 minute", risk=rate).to(
                "large", KafkaSink(topic=large, servers=servers, key="user"), guarantee=Guarantee.AT_LEAST_ONCE
            ),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
            dead_letters=KafkaSink(topic=letters, servers=servers),
        )
"""

Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset({"lockgate_job": "metered", **labels}.items())


class Receiver:
    """A real OTLP receiver: HTTP and protobuf, as a collector has them."""

    def __init__(self) -> None:
        receiver = self
        self.figures: Figures = {}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, ExportMetricsServiceRequest.FromString(body))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, path: str, request: ExportMetricsServiceRequest) -> None:
        assert path == "/v1/metrics"
        found: Figures = {}
        for resource in request.resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                is_counter = metric.WhichOneof("data") == "sum"
                assert not is_counter or metric.sum.is_monotonic
                points = metric.sum.data_points if is_counter else metric.gauge.data_points
                for point in points:
                    labels = frozenset((one.key, one.value.string_value) for one in point.attributes)
                    value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
                    found[metric.name + ("_total" if is_counter else ""), labels] = value
        self.figures = found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Live:
    """`lockgate run` under way, and what it says of itself."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def address(self) -> str | None:
        found = re.search(r"metrics at (http://[^/]+)/metrics", self.process.said)
        return found and found[1]

    def get(self, path: str) -> tuple[int, str]:
        assert self.address is not None
        try:
            with _DIRECT.open(self.address + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def scrape(self) -> Figures:
        status, text = self.get("/metrics")
        if status != 200:
            return {}
        families = text_string_to_metric_families(text)
        return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        self.process.wait_for(what, holds)

    def wait_for_figure(self, wanted: tuple[str, frozenset[tuple[str, str]]], value: float) -> None:
        found: Figures = {}

        def is_there() -> bool:
            found.clear()
            found.update(self.scrape())
            return found.get(wanted) == value

        try:
            self.wait_for("a figure", is_there)
        except AssertionError as error:
            shown = "\n".join(
                f"{name} {dict(labels)} {value}" for (name, labels), value in sorted(found.items(), key=str)
            )
            raise AssertionError(f"{wanted} is not {value}:\n{shown}\n{error}") from None


def payments(count: int, second: int, amount: int = 10) -> list[bytes]:
    at = f"2026-01-01T00:00:{second:02d}Z"
    return [
        json.dumps({"id": number, "user": f"user-{number % 3}", "amount": amount, "at": at}).encode()
        for number in range(count)
    ]


def test_a_live_job_shows_what_it_does_falls_ill_with_its_broker_and_counts_its_restarts(
    own_stack: Stack, tmp_path: Path
) -> None:
    names = ("read", "sums", "late", "large", "letters")
    topics = {name: f"{name}-{uuid4().hex[:8]}" for name in names}
    kafka, broker = own_stack.kafka.servers, own_stack.status().kafka.brokers[0].pid
    create_topics(kafka, topics.values(), partitions=2, where="test")
    (tmp_path / "metered.py").write_text(textwrap.dedent(JOB))

    def send(values: list[bytes]) -> None:
        turns = itertools.cycle((0, 1))
        records.send(kafka, topics["read"], values, partition=lambda value: next(turns))

    receiver = Receiver()
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address, "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    arguments = [
        "metered.py",
        *parameters(servers=kafka, **topics),
        "--metrics",
        "0",
        "--otel",
        "--log",
        "json",
        "--unhealthy-after",
        "8",
    ]
    assert broker is not None
    try:
        with running(*LOCKGATE, "run", *arguments, cwd=tmp_path, environ=environment) as process:
            run = Live(process)
            run.wait_for("an address", lambda: run.address is not None)
            # The supervisor answers before there is a driver.
            status, text = run.get("/health")
            assert (status, json.loads(text)["status"]) == (200, "starting")
            assert run.get("/ready")[0] == 503
            assert run.get("/nothing")[0] == 404

            # 12 payments in the first window, 6 of them large, 2 that fail in the function, 3 that do not parse.
            send([*payments(6, 1), *payments(6, 5, amount=50), *payments(2, 6, amount=-7), b"{", b"[]", b"no"])
            send(payments(4, 30))  # which end the first window
            run.wait_for_figure(key("lockgate_rows_out_total", output="sums"), 3)
            assert run.get("/ready") == (200, '{"status": "working"}\n')
            send(payments(5, 2))  # too late for it
            run.wait_for_figure(key("lockgate_rows_out_total", output="late"), 5)

            expected: Figures = {
                key("lockgate_events_in_total", source="payments"): 26,
                key("lockgate_step_events_in_total", step="map"): 23,
                key("lockgate_step_events_out_total", step="map"): 21,
                key("lockgate_rows_out_total", output="large"): 6,
                key("lockgate_fan_out_events_total", step="fan_out"): 6,
                key("lockgate_fan_out_partial_total", step="fan_out"): 0,
                key("lockgate_fan_out_calls_total", step="fan_out", function="risk", ending="answered"): 6,
                key("lockgate_rows_out_total", output="dead-letters"): 5,
                key("lockgate_watermark_seconds"): 1767225630,
                key("lockgate_state_rows", step="sums-of-users"): 3,
                key("lockgate_events_processed_total", times="1x"): 26,
                key("lockgate_events_delivered_total", times="1x"): 26,
                key("lockgate_healthy"): 1,
                key("lockgate_ready"): 1,
                key("lockgate_restarts_total"): 0,
                key("lockgate_query_restarts_total"): 0,
                key("lockgate_skipped_records_total"): 0,
                key("lockgate_open_transactions"): 0,
                key("lockgate_waiting_events"): 0,
                **{
                    key("lockgate_lag_records", source="payments", topic=topics["read"], partition=str(number)): 0
                    for number in range(2)
                },
            }
            # What is written is told by the commit, and the rest when Spark has reported the epoch.
            run.wait_for_figure(key("lockgate_events_in_total", source="payments"), 26)
            run.wait_for("the end of all tries", lambda: tries_left(run.scrape()) == 0)
            shown = run.scrape()
            assert {name: shown.get(name) for name in expected} == expected
            letters = {
                labels: value for (name, labels), value in shown.items() if name == "lockgate_dead_letters_total"
            }
            by_reason = {(dict(labels)["step"], dict(labels)["reason"]): value for labels, value in letters.items()}
            assert sum(value for (step, _), value in by_reason.items() if step == "payments") == 3
            assert by_reason["map", "ValueError: … is less than nothing"] == 2
            written = {
                topic: sum(
                    value
                    for (name, labels), value in shown.items()
                    if name == "lockgate_records_written_total" and dict(labels)["topic"] == topics[topic]
                )
                for topic in ("sums", "late", "letters")
            }
            assert written == {"sums": 3, "late": 5, "letters": 5}
            assert shown[key("lockgate_state_bytes", step="sums-of-users")] > 0
            assert shown[key("lockgate_memory_bytes", process="jvm")] > 100_000_000
            assert shown[key("lockgate_watermark_delay_seconds")] > 1_000_000
            assert 0 < shown[key("lockgate_fan_out_end_to_end_seconds", step="fan_out", quantile="0.99")] < 600
            for phase in ("begin", "stage", "write", "end"):
                assert shown[key("lockgate_commit_seconds_total", phase=phase)] >= 0
            assert shown[key("lockgate_epoch_phase_seconds_total", phase="addBatch")] > 0
            assert all(dict(labels)["lockgate_job"] == "metered" for _, labels in shown)

            # Everything is declared, and all that the dashboard asks a job for is there.
            assert {name for name, _ in shown} == {metric.name for metric in METRICS}
            asked = set(re.findall(r"lockgate_[a-z_]+", " ".join(expressions(DASHBOARD)))) - {"lockgate_job"}
            assert asked - {metric.name for metric in PRESENTER_METRICS} <= {name for name, _ in shown}

            # The same goes to a collector.
            run.wait_for("the collector", lambda: expected.items() <= receiver.figures.items())
            assert {name for name, _ in receiver.figures} == {name for name, _ in shown}

            os.kill(broker, signal.SIGSTOP)
            run.wait_for("a stuck job", lambda: run.get("/health")[0] == 503)
            told = json.loads(run.get("/health")[1])
            assert told["status"] == "stuck"
            assert "no epoch after" in told["reason"]
            assert run.scrape()[key("lockgate_healthy")] == 0
            os.kill(broker, signal.SIGCONT)
            run.wait_for("a working job", lambda: run.get("/health") == (200, '{"status": "working"}\n'))

            # A driver that is killed is followed by another one, at the same port.
            (driver,) = [one for one in psutil.Process(process.pid).children() if "--no-supervise" in one.cmdline()]
            driver.kill()
            run.wait_for("a restart", lambda: json.loads(run.get("/health")[1])["status"] in ("restarting", "starting"))
            send(payments(3, 40))
            run.wait_for_figure(key("lockgate_restarts_total"), 1)
            run.wait_for_figure(key("lockgate_events_in_total", source="payments"), 3)
            assert run.get("/ready")[0] == 200
            os.killpg(process.pid, signal.SIGTERM)
            assert process.end() == 0, process.text
        assert receiver.figures[key("lockgate_restarts_total")] == 1  # told once more at the end
    finally:
        os.kill(broker, signal.SIGCONT)
        receiver.close()

    lines = [json.loads(line) for line in process.said.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    (letters_told,) = [line for line in lines if "became dead letters" in line["message"]][:1]
    assert (letters_told["job"], letters_told["level"]) == ("metered", "WARNING")
    assert letters_told["step"] in ("payments", "map")
    assert letters_told["epoch"] >= 0
    assert len(letters_told["run"]) == 36
    assert [line["message"] for line in lines if line["message"].startswith("restart 1, from epoch")]


def tries_left(figures: Figures) -> float:
    """Tries of epochs that have not ended; those that were repeated stay in it."""
    return figures[key("lockgate_epoch_tries_total")] - figures[key("lockgate_epochs_total")]


def expressions(dashboard: Path) -> list[str]:
    """What a dashboard asks Prometheus for."""
    panels = json.loads(dashboard.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]
