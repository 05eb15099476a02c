"""The jars that PySpark does not bring: Spark's Kafka connector, servers (Kafka, HDFS), and a rival to measure against.

They are fetched once, by Spark's own Ivy in a throw-away process, checked, and put in a cache; after that no network is
needed. The law: no jar is handed out before its SHA-256 is compared with the expected one.

    default coordinates     the expected one is in jars.sha256, beside this file
    coordinates of yours    the expected one is that of the first fetch, and a message says so

A directory of the cache is complete or absent, never half: jars are gathered aside and renamed into place, under a
lock. Every use reads all bytes again: a size and a time can be forged. And a cache that other users may write to is
refused, because they could change a jar between the comparison and its use.

Environment:
    LOCKGATE_CACHE              the cache directory; else $XDG_CACHE_HOME/lockgate, else ~/.cache/lockgate
    LOCKGATE_KAFKA_CONNECTOR    other coordinates for the connector, separated by blanks
    LOCKGATE_KAFKA_BROKER       other coordinates for the broker, separated by blanks
A coordinate is group:artifact:version, with ?transitive=false or ?exclude=group:artifact as in Spark's ADD JAR. A
mirror is named as for any Spark: spark.jars.repositories or spark.jars.ivySettings in spark-defaults.conf under
$SPARK_CONF_DIR, or the variable DEFAULT_ARTIFACT_REPOSITORY.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from lockgate.errors import BadMachine
from lockgate.escaping import tell
from lockgate.modulepath import module_path
from lockgate.private import make_private, who_may_change
from lockgate.provision.java import find_java
from lockgate.untrusted import read_object

CONNECTOR_DEFAULT = (
    # The token provider was not published with this version: excluded here, added from an earlier one below.
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0?exclude=org.apache.spark:spark-token-provider-kafka-0-10_2.13",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0?transitive=false",
)
BROKER_DEFAULT = (
    "org.apache.kafka:kafka_2.13:4.3.1",
    # The binding for the broker's slf4j 1.7; without it the broker runs and writes no log.
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
JDBC = ("org.postgresql:postgresql:42.7.14?transitive=false",)
# NameNode and DataNode with all they need, except Hadoop's client, which PySpark brings in exactly this version.
HDFS = ("org.apache.hadoop:hadoop-client-minicluster:3.5.0?transitive=false",)
_HDFS_OF_SPARK = (
    "hadoop-client-api-3.5.0.jar",
    "hadoop-client-runtime-3.5.0.jar",
    "slf4j-api-2.*.jar",
    "jcl-over-slf4j-2.*.jar",
    "log4j-slf4j2-impl-2.*.jar",
    "log4j-api-2.*.jar",
    "log4j-core-2.*.jar",
    "log4j-1.2-api-2.*.jar",
)
EXPECTED_FILE = Path(__file__).with_name("jars.sha256")
STALL = timedelta(seconds=60)
"""A fetch that receives nothing for so long is given up: Ivy itself would wait for minutes on a dead network."""
_TRIES = 2  # a mirror that has to get a file first may be that slow once

Progress = Callable[[str], None]

log = logging.getLogger(__name__)


def connector_jars(progress: Progress | None = None) -> list[Path]:
    """The jars to give to Spark as `spark.jars`, so that it can read and write Kafka."""
    return connector().jars(progress)


def broker_jars(progress: Progress | None = None) -> list[Path]:
    """The class path of a Kafka broker."""
    # Spark's Ivy omits Scala's library from all that it fetches, because Spark brings it: the broker uses that one.
    return [*broker().jars(progress), _of_spark("scala-library-2.13.*.jar", "the Kafka broker")]


def hdfs_jars(progress: Progress | None = None) -> list[Path]:
    """The class path of a NameNode and of a DataNode; only tests need it."""
    return [*hdfs().jars(progress), *(_of_spark(pattern, "HDFS") for pattern in _HDFS_OF_SPARK)]


def jdbc_jars(progress: Progress | None = None) -> list[Path]:
    """PostgreSQL's JDBC driver, with which Spark's own writer reaches a table; only a benchmark needs it."""
    return jdbc().jars(progress)


def connector() -> "JarSet":
    """Spark's Kafka connector, at the default coordinates or at those of LOCKGATE_KAFKA_CONNECTOR."""
    return _jar_set("connector", CONNECTOR_DEFAULT, "LOCKGATE_KAFKA_CONNECTOR")


def broker() -> "JarSet":
    """The Kafka broker, at the default coordinates or at those of LOCKGATE_KAFKA_BROKER."""
    return _jar_set("broker", BROKER_DEFAULT, "LOCKGATE_KAFKA_BROKER")


def jdbc() -> "JarSet":
    """PostgreSQL's JDBC driver."""
    command = "lockgate bench --part table"
    return JarSet(name="jdbc", coordinates=JDBC, expected=_expected("jdbc"), size="about 1 MB", command=command)


def hdfs() -> "JarSet":
    """The servers of HDFS."""
    command = "lockgate jars --hdfs"
    return JarSet(name="hdfs", coordinates=HDFS, expected=_expected("hdfs"), size="56 MB", command=command)


def _of_spark(pattern: str, user: str) -> Path:
    """A jar of PySpark's, for another user of it."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations if spec else None) or ():
        for jar in Path(place, "jars").glob(pattern):
            return jar
    raise BadMachine(
        f"The installed PySpark has no {pattern}, which {user} needs.",
        f"package pyspark, {spec.origin if spec else 'not installed'}",
        "install PySpark as pinned by this release: pip install --force-reinstall lockgate",
    )


def cache_directory() -> Path:
    """The directory of fetched jars, shared by all checkouts of a user."""
    if chosen := os.environ.get("LOCKGATE_CACHE"):
        return Path(chosen).absolute()
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen).absolute() / "lockgate"
    home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    return Path(home).absolute() / ".cache" / "lockgate"


def make_cache(directory: Path) -> None:
    """Make a directory of the cache that only its owner may write to."""
    make_private(cache_directory())
    make_private(directory)


def is_safe(file: Path) -> bool:
    """May a file be run that was made for the cache, and has no known checksum? If not, a warning says so."""
    why = who_may_change(file)
    if why is not None:
        log.warning(
            "%s is not used, which makes starts slower: others than you may change it, because %s; fix: chmod go-w, or"
            " choose another cache: LOCKGATE_CACHE=/a/directory",
            file,
            why,
        )
    return why is None


def _jar_set(name: str, default: tuple[str, ...], variable: str) -> "JarSet":
    chosen = tuple(os.environ.get(variable, "").split())
    if chosen in ((), default):
        return JarSet(name=name, coordinates=default, expected=_expected(name))
    return JarSet(name=name, coordinates=chosen, expected=None)


def _expected(name: str) -> dict[str, str]:
    """Read the lines `<sha256>  <set>/<jar>` of one set."""
    pairs = (line.split() for line in EXPECTED_FILE.read_text().splitlines())
    return {path.split("/", 1)[1]: digest for digest, path in pairs if path.startswith(f"{name}/")}


@dataclass(frozen=True)
class JarSet:
    """Jars that belong together; `expected` maps each to its SHA-256, or is None to trust the first fetch."""

    name: str
    coordinates: tuple[str, ...]
    expected: dict[str, str] | None
    size: str = "about 60 MB in all"
    command: str = "lockgate jars"  # that fetches them

    @property
    def directory(self) -> Path:
        """The directory of these coordinates: another choice has another directory."""
        digest = hashlib.sha256("\n".join(self.coordinates).encode()).hexdigest()[:12]
        return cache_directory() / "jars" / f"{self.name}-{digest}"

    @property
    def is_cached(self) -> bool:
        """Whether the jars have been fetched; says nothing about their bytes."""
        return (self.directory / _MANIFEST).is_file()

    def jars(self, progress: Progress | None = None) -> list[Path]:
        """The checked jars, fetched first if necessary; BadMachine if that is impossible."""
        if not self.is_cached:
            self._fetch(progress or tell)
        return self._check()

    def _check(self) -> list[Path]:
        path = self.directory / _MANIFEST
        try:
            manifest = read_object(path.read_bytes())
            facts = {str(jar): fact for jar, fact in manifest["jars"].items()}
            recorded = {jar: str(fact["sha256"]) for jar, fact in facts.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._refusal(f"The list of cached jars cannot be read ({error}).", path) from error
        expected = recorded if self.expected is None else self.expected
        if recorded != expected:
            odd = sorted(jar for jar in recorded.keys() | expected.keys() if recorded.get(jar) != expected.get(jar))
            raise self._refusal(f"The cached jars are not the expected ones: {', '.join(odd)}.", self.directory)
        for jar in facts:
            try:
                self._refuse_open(self.directory / jar)
                matches = _sha256(self.directory / jar) == expected[jar]
            except OSError as error:
                raise self._refusal(f"A cached jar cannot be read: {jar} ({error}).", self.directory) from error
            if not matches:
                raise self._refusal(f"The cached jar {jar} has been changed.", self.directory)
        return [self.directory / jar for jar in sorted(facts)]

    def _refuse_open(self, file: Path) -> None:
        if (why := who_may_change(file)) is not None:
            raise BadMachine(
                f"Others than you may change the cached jars: {why}.",
                str(file),
                "choose a cache that is yours alone: LOCKGATE_CACHE=/a/directory; or remove the right to write"
                f" (chmod go-w), delete {self.directory} and fetch again: {self.command}",
            )

    def _refusal(self, what: str, where: Path) -> BadMachine:
        return BadMachine(what, str(where), f"delete {self.directory} and fetch again: {self.command}")

    def _fetch(self, progress: Progress) -> None:
        """Resolve, compare, put in place; of several processes one does it and the others wait."""
        with _lock(self.directory.parent, progress):
            if self.is_cached:
                return
            find_java()
            log = self.directory.parent / f"fetch-{self.name}.log"
            with tempfile.TemporaryDirectory(prefix=".fetching-", dir=self.directory.parent) as aside:
                ready = Path(aside) / "ready"
                ready.mkdir()
                for jar in _resolve(self, Path(aside), log, progress):
                    shutil.copy2(jar, ready / jar.name)
                brought = {jar.name: _sha256(jar) for jar in ready.iterdir()}
                if self.expected is None:
                    progress(
                        f"{self.name}: these are not the default coordinates, so the checksums of this first fetch"
                    )
                    progress(f"  are trusted and recorded in {self.directory / _MANIFEST}")
                else:
                    self._compare(brought, self.expected, log)
                _write_manifest(ready, self.coordinates, brought)
                if self.directory.exists():  # without a manifest: not ours to serve, and complete or absent is the law
                    shutil.rmtree(self.directory)
                ready.rename(self.directory)

    def _compare(self, brought: dict[str, str], expected: dict[str, str], log: Path) -> None:
        odd = sorted(jar for jar in brought.keys() | expected.keys() if brought.get(jar) != expected.get(jar))
        if odd:
            raise BadMachine(
                f"What was fetched is not what was expected: {', '.join(odd)}.",
                f"set '{self.name}' of {EXPECTED_FILE.name}; log {log}",
                "nothing was kept. Fetch again; if it stays so, look at the mirror or the local Maven repository "
                "(~/.m2) that the jars come from",
            )


_MANIFEST = "manifest.json"


def _write_manifest(directory: Path, coordinates: tuple[str, ...], digests: dict[str, str]) -> None:
    jars = {jar: {"sha256": digest} for jar, digest in sorted(digests.items())}
    text = json.dumps({"coordinates": coordinates, "jars": jars}, indent=1)
    aside = directory / f"{_MANIFEST}.{os.getpid()}"
    aside.write_text(text)
    aside.replace(directory / _MANIFEST)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _lock(directory: Path, progress: Progress) -> Iterator[None]:
    try:
        make_cache(directory)
        file = (directory / ".lock").open("w")
    except OSError as error:
        raise BadMachine(
            f"The cache for jars cannot be written: {error.strerror}.",
            str(directory),
            "make it writable, or choose another directory: LOCKGATE_CACHE=/a/directory",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is fetching jars, waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _resolve(wanted: JarSet, aside: Path, log: Path, progress: Progress) -> list[Path]:
    """Let Spark resolve the coordinates in a process of its own: a session in this process could not be replaced."""
    progress(f"fetching jars: {wanted.name} (once, {wanted.size}) ...")
    listing = aside / "listing.json"
    environ = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    environ["PYTHONPATH"] = module_path()
    command = [sys.executable, "-P", "-m", __name__, str(aside / "ivy"), str(listing), *wanted.coordinates]
    for tries_left in reversed(range(_TRIES)):
        with log.open("wb") as output:
            # A session of its own, so that Python and the JVM under it can be ended together.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=aside,
                env=environ,
                start_new_session=True,
            )
        try:
            has_ended = _watch(child, aside / "ivy" / "cache", progress)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.returncode == 0:
            break
        stalled = f"nothing was received for {STALL.total_seconds():.0f} s"
        if not has_ended and tries_left:
            progress(f"  {stalled}; trying once more")
            continue
        raise BadMachine(
            f"The jars {wanted.name!r} are not in the cache and could not be fetched: "
            f"{_cause(log) if has_ended else stalled}",
            f"cache {cache_directory()}; log {log}",
            "give this machine access to Maven Central (or a mirror: DEFAULT_ARTIFACT_REPOSITORY=...) and run: "
            f"{wanted.command}. Without a network, copy {cache_directory()} from a machine that has it, to the same "
            "place or to any other with LOCKGATE_CACHE=/that/place",
        )
    return [aside / "ivy" / "jars" / name for name in json.loads(listing.read_text())]


def _watch(child: "subprocess.Popen[bytes]", ivy: Path, progress: Progress) -> bool:
    """Wait for the child's end, and report how much was received; False if nothing is received any more."""
    seen, told = 0, 0
    moved = time.monotonic()
    while child.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.5)
        now = _bytes_in(ivy)
        if now != seen:
            seen, moved = now, time.monotonic()
        if seen - told >= 10_000_000:
            told = seen
            progress(f"  {seen // 1_000_000} MB")
        if time.monotonic() - moved > STALL.total_seconds():
            return False
    return True


def _bytes_in(directory: Path) -> int:
    total = 0
    for base, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # Ivy renames its partial files in the meantime
                total += Path(base, name).stat().st_size
    return total


def _cause(log: Path) -> str:
    """The line of Ivy's report that a person can act on."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    for word in (
        "UnknownHostException",
        "ConnectException",
        "timed out",
        "refused",
        "unreachable",
        "not found",
        "Error",
    ):
        for line in lines:
            if word.lower() in line.lower():
                return line[:200]
    return lines[-1][:200] if lines else "no answer from the network"


def _resolve_here(ivy: str, listing: str, coordinates: list[str]) -> None:
    """In the throw-away process: ask Spark for the jars and write down their names."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars.ivy", ivy)
        # Beside Ivy's directory, which is removed as a whole: a fetch that is ended leaves nothing behind.
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={Path(ivy).parent}")
        .config("spark.local.dir", str(Path(ivy).parent))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    for coordinate in coordinates:
        spark.sql(f"ADD JAR 'ivy://{coordinate}'").collect()
    names = sorted(row[0].rsplit("/", 1)[1] for row in spark.sql("LIST JARS").collect())
    spark.stop()
    Path(listing).write_text(json.dumps(names))


if __name__ == "__main__":
    _resolve_here(sys.argv[1], sys.argv[2], sys.argv[3:])
