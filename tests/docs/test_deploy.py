"""The files of docs/deploy fit together, and start a command that exists."""

import configparser
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockgate.cli.main import make_parser
from lockgate.runtime.metrics.health import START_SECONDS

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"


@pytest.fixture
def objects() -> dict[str, Any]:
    found = yaml.safe_load_all((DEPLOY / "lockgate-job.yaml").read_text())
    return {one["kind"]: one for one in found}


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # names of settings have capitals
    unit.read(DEPLOY / "lockgate@.service")
    return unit["Service"]


def test_the_manifest_refers_to_nothing_that_is_not_in_it(objects: dict[str, Any]) -> None:
    spec = objects["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} == {*volumes}
    claim = volumes["checkpoints"]["persistentVolumeClaim"]["claimName"]
    assert claim == objects["PersistentVolumeClaim"]["metadata"]["name"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == ["/ready", "/health", "/ready"]
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > START_SECONDS, "a start may take so long"
    assert {probe["port"] for probe in probes} <= {*ports}
    assert f"0.0.0.0:{ports['metrics']}" in container["args"]
    assert spec["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])


def test_only_the_port_of_the_metrics_is_open_to_others(objects: dict[str, Any]) -> None:
    policy, deployment = objects["NetworkPolicy"]["spec"], objects["Deployment"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert [one["port"] for one in rule["ports"]] == [one["name"] for one in container["ports"]] == ["metrics"]
    assert all(one for one in rule["from"]), "an empty selector lets everybody in"


def test_there_is_never_a_second_driver_and_time_to_stop(objects: dict[str, Any]) -> None:
    spec = objects["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 60


def test_the_pod_runs_a_command_that_exists_and_keeps_its_checkpoint_on_the_volume(objects: dict[str, Any]) -> None:
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["lockgate"]
    parsed = make_parser().parse_args(container["args"])
    assert parsed.is_supervised
    assert parsed.metrics == container["args"][container["args"].index("--metrics") + 1]
    mounts = [one["mountPath"] for one in container["volumeMounts"] if one["name"] == "checkpoints"]
    assert parsed.checkpoint.startswith(f"file://{mounts[0]}/")


def test_the_user_of_the_image_is_that_of_the_pod_and_has_a_name(objects: dict[str, Any]) -> None:
    user = objects["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    image = (DEPLOY.parent / "DEPLOYING.md").read_text().partition("FROM python")[2].partition("```")[0].splitlines()
    named = next(line for line in image if line.startswith("RUN useradd"))
    assert f"--uid {user} " in named, "Hadoop does not start for a user without a name"
    assert image.index(named) < image.index(f"USER {user}")


def test_systemd_leaves_to_the_supervisor_what_is_its_own(service: configparser.SectionProxy) -> None:
    program, *words = service["ExecStart"].split()
    assert program.endswith("/bin/lockgate")
    assert words.pop() == "$OPTIONS"
    assert make_parser().parse_args(words).is_supervised
    assert service["Restart"] == "on-abnormal"
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) >= 60
    assert "MemoryDenyWriteExecute" not in service, "Java would not start"
