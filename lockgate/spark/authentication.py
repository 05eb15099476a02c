"""Decide whether Spark's own ports ask for a secret.

Without one, any process that reaches the ports of a driver can read the settings and the code of the job, and what its
functions hold, passwords among them. It can also send Java objects, which the driver deserializes. With a secret the
driver refuses the first message of such a process, and everything on these ports is encrypted.

    master       source of the secret                     if spark-defaults.conf and spark-submit say nothing
    local        Spark, for this driver alone             on
    yarn, k8s    Spark, which gives it to the executors   on
    spark://     a person: the Master asks for it, too    on if the secret is named; else a warning, or a refusal

A setting in `spark-defaults.conf` or an option of spark-submit counts, also if it switches this off: an external
shuffle service, for example, may know no secret. Then the driver gives the same warning. It also warns
of ports that ask for a secret and encrypt nothing.

A secret is never part of a command line, which every user of the machine can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lockgate.errors import Refused
from lockgate.secrets import Secret, resolve

AUTHENTICATION = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    # Spark's default cipher encrypts, but does not notice if the bytes are changed on the way.
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
    # Else a peer that does not encrypt gets a connection without encryption.
    "spark.network.crypto.saslFallback": "false",
}
_ENCRYPTING = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled")
SECRET = "spark.authenticate.secret"
SECRET_VARIABLE = "_SPARK_AUTH_SECRET"
"""A Master and a Worker read the secret from here, too: it is Spark's own name."""

REFERENCE = "LOCKGATE_SPARK_SECRET"
"""The variable that says where the secret is: file:/path, env:NAME or hook:module:function."""

GUIDE = "docs/DEPLOYING.md#authentication-between-sparks-processes"


@dataclass(frozen=True)
class Protection:
    """The settings that a driver is started with, and what is wrong with them."""

    settings: Mapping[str, str]
    lack: Refused | None = None


def protect(master: str, told: Mapping[str, str], environ: Mapping[str, str]) -> Protection:
    """Decide how the ports of a driver are protected.

    Args:
        told: the settings of Spark in spark-defaults.conf and on the command line of spark-submit.
    """
    where = f"master {master}"
    if _is_on(told, "spark.authenticate") is False:
        return Protection({}, _lack(master, "spark.authenticate is false", "remove that setting", where))
    if told.get("spark.submit.deployMode") == "cluster":
        # The cluster has created the secret before this process started, or there is none.
        if _is_on(told, "spark.authenticate"):
            return Protection({}, _lack_of_encryption(told, master))
        fix = "submit with the commands of `lockgate package`, or with --conf spark.authenticate=true"
        return Protection({}, _lack(master, "it was submitted without spark.authenticate", fix, where))
    settings = {name: value for name, value in AUTHENTICATION.items() if name not in told}
    lack = _lack_of_encryption({**settings, **told}, master)
    if is_local_master(master) or re.match(r"yarn$|k8s://", master):
        return Protection(settings, lack)
    secret: str | None = environ.get(SECRET_VARIABLE) or told.get(SECRET)
    if not secret and environ.get(REFERENCE):
        secret = resolve(environ[REFERENCE], login=f"secret of {master}", where=f"{REFERENCE}, {where}")
    if not secret:
        fix = f"give Master, Workers and this driver one secret: {GUIDE}"
        return Protection({}, _lack(master, "no secret is named for it", fix, where))
    return Protection({**settings, SECRET: Secret(secret)}, lack)


def lack_of(settings: Mapping[str, str], master: str) -> Refused | None:
    """What is wrong with a driver that Lockgate did not start."""
    if _is_on(settings, "spark.authenticate"):
        return _lack_of_encryption(settings, master)
    names = " ".join(f'.config("{name}", "{value}")' for name, value in [*AUTHENTICATION.items()][:2])
    fix = f"start its session with {names}; on a standalone cluster with a secret, too: {GUIDE}"
    return _lack(master, "spark.authenticate is off", fix, f"master {master}")


def _lack(master: str, why: str, fix: str, where: str) -> Refused:
    whom = "other users of this machine" if is_local_master(master) else "any process that reaches its ports"
    return Refused(
        f"Spark's ports ask for no secret ({why}): {whom} can read the code of this job and the passwords in it, and"
        " run code in its driver",
        where=where,
        fix=fix,
    )


def _lack_of_encryption(settings: Mapping[str, str], master: str) -> Refused | None:
    """What is wrong with a driver that asks for a secret."""
    if is_local_master(master) or any(_is_on(settings, name) for name in _ENCRYPTING):
        return None
    return Refused(
        "Spark's ports encrypt nothing (spark.network.crypto.enabled is off): any machine on the network path can read"
        " the code of this job and the passwords in it",
        where=f"master {master}",
        fix="set spark.network.crypto.enabled=true, here and in the rest of the cluster",
    )


def is_local_master(master: str) -> bool:
    """Does this master mean the driver's own process?"""
    return bool(re.match(r"local($|\[)", master))


def _is_on(settings: Mapping[str, str], name: str) -> bool | None:
    """Is a setting on? None if it is not set. Spark reads "TRUE" and " true " as true."""
    value = settings.get(name)
    return None if value is None else value.strip().lower() == "true"
