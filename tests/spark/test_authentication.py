"""Spark's ports ask for a secret wherever Spark can make one; elsewhere a person names it, or hears what is open."""

from pathlib import Path

import pytest

from lockgate.errors import Refused
from lockgate.spark.authentication import AUTHENTICATION, REFERENCE, SECRET, SECRET_VARIABLE, lack_of, protect

STANDALONE = "spark://host:7077"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "yarn", "k8s://https://host:6443"])
def test_if_spark_makes_the_secret_it_is_asked_for(master: str) -> None:
    found = protect(master, {}, {SECRET_VARIABLE: "not asked for"})
    assert (found.settings, found.lack) == (AUTHENTICATION, None)


@pytest.mark.parametrize("master", [STANDALONE, "local-cluster[1,1,1024]"])
def test_a_cluster_that_makes_none_is_a_lack_until_one_is_named(master: str) -> None:
    found = protect(master, {}, {})
    assert found.settings == {}
    assert found.lack is not None
    assert "(no secret is named for it): any process that reaches its ports can read the code" in found.lack.what
    assert "docs/DEPLOYING.md" in found.lack.fix
    named = protect(master, {}, {SECRET_VARIABLE: "s3cret"})
    assert (named.settings, named.lack) == ({**AUTHENTICATION, SECRET: "s3cret"}, None)
    assert "s3cret" not in repr(named)


def test_a_secret_is_found_where_spark_looks_for_it_and_behind_a_reference(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    named = {REFERENCE: f"file:{tmp_path}/secret"}
    assert protect(STANDALONE, {}, named).settings[SECRET] == "from a file"
    assert protect(STANDALONE, {SECRET: "told"}, named).settings[SECRET] == "told"
    # As in Spark: what its own variable says comes before its settings.
    assert protect(STANDALONE, {SECRET: "told"}, {SECRET_VARIABLE: "own", **named}).settings[SECRET] == "own"
    with pytest.raises(Refused, match="leads to no value") as caught:
        protect(STANDALONE, {}, {REFERENCE: f"file:{tmp_path}/absent"})
    assert REFERENCE in caught.value.where


def test_what_a_place_says_counts() -> None:
    told = {"spark.network.crypto.authEngineVersion": "1", "spark.authenticate": " TRUE "}
    settings = protect("yarn", told, {}).settings
    assert settings == {name: value for name, value in AUTHENTICATION.items() if name not in told}
    off = protect("local[*]", {"spark.authenticate": "false"}, {})
    assert off.settings == {}
    assert off.lack is not None
    assert "(spark.authenticate is false): other users of this machine can read" in off.lack.what


def test_a_driver_inside_of_a_cluster_keeps_what_it_was_submitted_with() -> None:
    cluster = {"spark.submit.deployMode": "cluster"}
    without = protect("yarn", cluster, {})
    assert without.settings == {}
    assert without.lack is not None
    assert "submit with the commands of `lockgate package`" in without.lack.fix
    submitted = protect("yarn", {**cluster, **AUTHENTICATION}, {})
    assert (submitted.settings, submitted.lack) == ({}, None)


def test_a_session_of_a_program_is_judged_by_its_settings() -> None:
    assert lack_of(AUTHENTICATION, STANDALONE) is None
    lack = lack_of({}, STANDALONE)
    assert lack is not None
    assert '.config("spark.authenticate", "true") .config("spark.network.crypto.enabled", "true")' in lack.fix


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host:6443", STANDALONE])
def test_a_secret_without_encryption_is_a_lack(master: str) -> None:
    open_line = {"spark.network.crypto.enabled": "false"}
    submitted = {"spark.submit.deployMode": "cluster", "spark.authenticate": "true"}
    lacks = [
        protect(master, open_line, {SECRET_VARIABLE: "s3cret"}).lack,
        protect(master, submitted, {}).lack,
        lack_of({"spark.authenticate": "true"}, master),
    ]
    for lack in lacks:
        assert lack is not None
        assert "encrypt nothing" in lack.what
    for name in ("spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption"):
        assert protect(master, {**open_line, name: "true"}, {SECRET_VARIABLE: "s3cret"}).lack is None
    assert protect("local[2]", open_line, {}).lack is None, "nothing of it leaves the machine"
