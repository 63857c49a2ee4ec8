"""`python -m tests.changed`: run the long tests that a change touches, and its mutations.

A change is what differs from the common ancestor with ``--since``, files that are not committed
included. `make test` runs all fast tests, but those of kernels in a checked build: after a change
of the engine they run here in the release build.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator

import click
from rich.console import Console

from tests import parts
from tests.mutation.entries import MUTATIONS
from tests.project import ROOT

ENGINE, SERVICE = "engine/tidecast/", "backend/tidecast_control/"
_BASE = (f"{ENGINE}native/", f"{ENGINE}layout/", f"{ENGINE}buffers/")
_LIVE = (
    *_BASE,
    f"{ENGINE}agents/live/",
    f"{ENGINE}agents/run.py",
    f"{ENGINE}agents/warmup.py",
    f"{ENGINE}node/live/",
    f"{ENGINE}node/lanes.py",
    f"{ENGINE}node/node.py",
    f"{ENGINE}node/conductor.py",
    f"{ENGINE}protocol/",
    f"{ENGINE}transport/",
    f"{ENGINE}testing/",
)
_DURABLE = (
    *_BASE,
    f"{ENGINE}agents/archiver/",
    f"{ENGINE}disk.py",
    f"{ENGINE}log/",
    f"{ENGINE}node/durable/",
    f"{ENGINE}protocol/dedup.py",
    f"{ENGINE}client/flows/",
)
_CONSUMING = (
    *_BASE,
    f"{ENGINE}agents/puller/",
    f"{ENGINE}node/consumers/",
    f"{ENGINE}node/scheduling/",
    f"{ENGINE}queues/",
    f"{ENGINE}client/consumer/",
)
_LEASES = (
    f"{ENGINE}log/takeover.py",
    f"{ENGINE}node/durable/leases.py",
    f"{ENGINE}queues/leases/",
)
_GATEWAY = (
    f"{ENGINE}config/certificate.py",
    f"{ENGINE}gateway/",
    f"{ENGINE}access.py",
    f"{ENGINE}node/access/",
    f"{ENGINE}client/remote/",
)
_PROCESSES = (
    f"{ENGINE}engine/",
    f"{ENGINE}client/",
    f"{ENGINE}api/",
    f"{ENGINE}config/",
    f"{ENGINE}sync.py",
    f"{ENGINE}embedded.py",
    f"{ENGINE}scratch.py",
    f"{ENGINE}events/",
    f"{ENGINE}errors.py",
    f"{ENGINE}agents/",
    f"{ENGINE}node/",
    f"{ENGINE}app/",
)
_COMMANDS = (f"{ENGINE}cli/", f"{ENGINE}doctor.py", f"{ENGINE}rest/")
_PAGE = (
    "frontend/",
    SERVICE,
    f"{ENGINE}control_link/",
    f"{ENGINE}telemetry/",
    "backend/openapi.json",
)
_SPARK = ("backend/tidecast_spark/", "backend/pyspark_tidecast/")
_DOCS = ("README.md", "docs/", "mkdocs.yml")

TOUCHED_BY: dict[str, tuple[str, ...]] = {
    "tests/cluster/test_durable.py": (*_DURABLE, *_LEASES, "tests/support/hosts/"),
    "tests/cluster/test_drain.py": (*_LEASES, f"{ENGINE}control_link/", "tests/support/hosts/"),
    "tests/cluster/test_unicast.py": (
        f"{ENGINE}control_link/peers.py",
        f"{ENGINE}node/live/",
        f"{SERVICE}nodes/paths.py",
        "tests/support/hosts/",
    ),
    "tests/cluster/test_live.py": (*_LIVE, f"{ENGINE}node/sealing/", "tests/support/hosts/"),
    "tests/cluster/test_upgrade.py": (
        f"{ENGINE}api/levels.py",
        f"{SERVICE}nodes/levels.py",
        "tests/support/hosts/",
    ),
    "tests/control/test_drain_order.py": _LEASES,
    "tests/control/test_lanes.py": (
        f"{SERVICE}transports/",
        f"{ENGINE}node/lanes.py",
        f"{ENGINE}node/live/",
        f"{ENGINE}transport/",
    ),
    "tests/control/test_mirrors_kafka.py": (
        f"{SERVICE}mirrors/",
        f"{ENGINE}mirror/",
        f"{ENGINE}kafka/",
        f"{ENGINE}connections/",
    ),
    "tests/control/test_mirrors_jetstream.py": (
        f"{SERVICE}mirrors/",
        f"{ENGINE}mirror/",
        f"{ENGINE}jetstream/",
        f"{ENGINE}connections/",
    ),
    "tests/control/test_storage_jetstream.py": (
        f"{SERVICE}topics/",
        f"{SERVICE}messages/",
        f"{ENGINE}jetstream/",
        f"{ENGINE}connections/",
        f"{ENGINE}node/storing/",
    ),
    "tests/control/test_openapi.py": (SERVICE,),
    "tests/control/test_pipelines_spark.py": (f"{SERVICE}pipelines/", *_SPARK),
    "tests/control/test_unicast_peers.py": (
        f"{SERVICE}nodes/",
        f"{ENGINE}control_link/",
        f"{ENGINE}node/sealing/",
        f"{ENGINE}transport/",
    ),
    "tests/control/test_resilience.py": (
        f"{SERVICE}db.py",
        f"{SERVICE}postgres.py",
        f"{SERVICE}supervisor.py",
        f"{SERVICE}link/",
        f"{ENGINE}control_link/",
    ),
    "tests/e2e/test_accessible.py": ("frontend/",),
    "tests/e2e/test_cluster.py": (*_PAGE, *_LEASES),
    "tests/e2e/test_copy_as.py": (*_PAGE, *_COMMANDS),
    "tests/e2e/test_dead_letters.py": (*_PAGE, f"{ENGINE}node/consumers/"),
    "tests/e2e/test_forms.py": _PAGE,
    "tests/e2e/test_mirrors.py": (
        *_PAGE,
        f"{SERVICE}mirrors/",
        f"{ENGINE}mirror/",
        f"{ENGINE}jetstream/",
        f"{ENGINE}connections/",
    ),
    "tests/e2e/test_kafka_groups.py": (
        *_PAGE,
        f"{ENGINE}kafka/groups/",
        "backend/tidecast_control/kafka/",
    ),
    "tests/e2e/test_scheduled_messages.py": (*_PAGE, f"{ENGINE}node/scheduling/"),
    "tests/e2e/test_large.py": _PAGE,
    "tests/e2e/test_managing.py": (*_PAGE, *_SPARK),
    "tests/e2e/test_outages.py": _PAGE,
    "tests/e2e/test_pictures.py": ("frontend/",),
    "tests/e2e/test_queues_move.py": (*_PAGE, *_LEASES),
    "tests/e2e/test_soak.py": (*_PAGE, f"{ENGINE}telemetry/"),
    "tests/e2e/test_two_engines.py": _PAGE,
    "tests/e2e/test_wayfinding.py": ("frontend/",),
    "tests/property/test_hostile_packets.py": _LIVE,
    "tests/simulation/test_acceptance_live.py": _LIVE,
    "tests/simulation/test_durable_fencing.py": _DURABLE,
    "tests/simulation/test_durable_leases.py": (*_DURABLE, *_LEASES),
    "tests/simulation/test_durable_owners.py": (*_DURABLE, *_LEASES, *_CONSUMING),
    "tests/simulation/test_durable_publish.py": _DURABLE,
    "tests/simulation/test_durable_remote.py": (*_DURABLE, *_LIVE),
    "tests/simulation/test_leases.py": _LEASES,
    "tests/control/test_leases.py": (*_LEASES, "backend/tidecast_control/leases/"),
    "tests/simulation/test_many_receivers.py": _LIVE,
    "tests/simulation/test_power.py": _DURABLE,
    "tests/simulation/test_scale.py": _LIVE,
    "tests/simulation/test_swarm_faults.py": ("tests/swarm/",),
    "tests/spark/test_archive_objects.py": _SPARK,
    "tests/spark/test_cluster.py": _SPARK,
    "tests/spark/test_cluster_partitions.py": _SPARK,
    "tests/spark/test_end_to_end.py": _SPARK,
    "tests/spark/test_rollup_engine.py": (*_SPARK, f"{ENGINE}telemetry/"),
    "tests/system/test_cold_kernels.py": (
        f"{ENGINE}client/",
        f"{ENGINE}agents/warmup.py",
        f"{ENGINE}agents/kernels",
    ),
    "tests/system/test_durable_disk.py": _DURABLE,
    "tests/system/test_durable_kills.py": (*_DURABLE, *_CONSUMING, *_PROCESSES),
    "tests/system/test_durable_takeover.py": (*_DURABLE, *_LEASES),
    "tests/system/test_engine_stops.py": (*_LIVE, *_DURABLE, *_PROCESSES),
    "tests/system/test_files.py": (
        *_LIVE,
        f"{ENGINE}cli/messages/pub.py",
        f"{ENGINE}cli/messages/sub.py",
    ),
    "tests/system/test_gateway_kills.py": (*_GATEWAY, *_CONSUMING),
    "tests/system/test_gateway_processes.py": (*_GATEWAY, *_PROCESSES),
    "tests/system/test_kafka_java.py": (f"{ENGINE}connections/", f"{ENGINE}kafka/"),
    "tests/system/test_kafka_other_clients.py": (f"{ENGINE}kafka/", "tests/support/kafka_"),
    "tests/system/test_mirror.py": (f"{ENGINE}mirror/", f"{ENGINE}kafka/brokers/", *_DURABLE),
    "tests/system/test_mirror_to_kafka.py": (
        f"{ENGINE}mirror/",
        f"{ENGINE}kafka/brokers/",
        f"{ENGINE}kafka/storing/",
        *_DURABLE,
    ),
    "tests/system/test_kafka_memory.py": (f"{ENGINE}connections/", f"{ENGINE}kafka/"),
    "tests/system/test_kafka_process.py": (f"{ENGINE}kafka/", *_DURABLE),
    "tests/system/test_kills.py": (*_LIVE, *_PROCESSES),
    "tests/system/test_shapes.py": (*_LIVE, *_PROCESSES),
    "tests/system/test_two_builds.py": (
        *_LIVE,
        *_DURABLE,
        *_LEASES,
        *_GATEWAY,
        f"{ENGINE}api/levels.py",
        f"{SERVICE}nodes/levels.py",
    ),
    "tests/system/test_up.py": (*_COMMANDS, f"{SERVICE}server.py", f"{ENGINE}engine/"),
    "tests/system/test_ack_repeats.py": (*_CONSUMING, *_PROCESSES),
    "tests/system/test_cold_cache.py": (
        f"{ENGINE}agents/warmup.py",
        f"{ENGINE}api/rpc.py",
        f"{ENGINE}engine/admission.py",
    ),
    "tests/unit/test_warmup.py": (
        f"{ENGINE}agents/warmup.py",
        f"{ENGINE}native/",
        f"{ENGINE}client/kernels/",
    ),
    "tests/test_bench_contract.py": (f"{ENGINE}bench/", "docs/BENCHMARKS.md"),
    "tests/test_doc_commands.py": (*_DOCS, *_COMMANDS),
    "tests/test_mutations.py": ("tests/mutation/run.py", "tests/mutation/__main__.py"),
    "tests/test_site.py": _DOCS,
    "tests/test_schedule_of_tests.py": ("tests/support/compiled.py", "tests/conftest.py"),
    "tests/unit/test_damage.py": (f"{ENGINE}log/",),
    "tests/unit/test_gateway_durable.py": (*_GATEWAY, f"{ENGINE}client/consumer/"),
    "tests/unit/test_adapters_waiting.py": (
        f"{ENGINE}connections/",
        f"{ENGINE}kafka/",
        f"{ENGINE}engine/adapters.py",
    ),
    "tests/unit/test_jetstream_adapter.py": (
        f"{ENGINE}connections/",
        f"{ENGINE}jetstream/",
        f"{ENGINE}queues/",
    ),
    "tests/system/test_jetstream_storage_kills.py": (
        f"{ENGINE}jetstream/",
        f"{ENGINE}connections/",
        f"{ENGINE}node/storing/",
    ),
    "tests/unit/test_kafka_attached.py": (
        f"{ENGINE}connections/",
        f"{ENGINE}kafka/",
        f"{ENGINE}queues/",
    ),
    "tests/unit/test_kafka_producing.py": (f"{ENGINE}connections/", f"{ENGINE}kafka/"),
    "tests/system/test_kafka_storage_kills.py": (
        f"{ENGINE}kafka/storing/",
        f"{ENGINE}node/storing/",
        *_DURABLE,
    ),
    "tests/control/test_kafka_owners.py": (
        f"{ENGINE}kafka/storing/",
        f"{ENGINE}node/storing/",
        f"{ENGINE}queues/leases/",
        *_DURABLE,
    ),
    "tests/unit/test_kafka_brokers.py": ("tests/support/kafka_brokers.py",),
    "tests/unit/test_ring_races.py": (*_BASE, f"{ENGINE}agents/live/sending.py"),
    "tests/unit/test_types.py": (
        *_DOCS,
        f"{ENGINE}__init__.py",
        f"{ENGINE}sync.py",
        f"{ENGINE}api/",
        f"{ENGINE}app/",
        f"{ENGINE}client/",
        f"{ENGINE}testing/",
    ),
}
"""Files with long tests -> files and folders whose change may break them."""
NO_LONG_TESTS = {
    f"{ENGINE}codecs.py": "pure functions",
    f"{ENGINE}protocol_document.py": "writes a page, which tests/test_protocol_doc.py compares",
    f"{ENGINE}supported.py": "a check at import",
    f"{ENGINE}version.py": "the installed version, read once",
}

RELEASE = ("-n", "3", "--dist", "loadgroup", "--part", "kernels")
"""Options of pytest for the tests of kernels in the release build."""


def long_tests(files: Collection[str]) -> list[str]:
    """Files with long tests that a change of ``files`` touches."""
    return [
        test
        for test, touched_by in TOUCHED_BY.items()
        if test in files or any(each.startswith(touched_by) for each in files)
    ]


def mutations(files: Collection[str]) -> list[str]:
    """Names of the mutations of changed files, or of which a test changed."""
    tested = {one.name: {test.partition("::")[0] for test in one.tests} for one in MUTATIONS}
    return [
        one.name
        for one in MUTATIONS
        if not one.equivalent and (one.file in files or tested[one.name] & set(files))
    ]


def changed_since(revision: str) -> Iterator[str]:
    """Files that differ from the common ancestor with a revision. Raises click.ClickException."""
    for command in (
        ["git", "diff", "--name-only", "--merge-base", revision],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ):
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise click.ClickException(f"{' '.join(command)}: {run.stderr.strip()}")
        yield from run.stdout.splitlines()


@click.command(help=__doc__)
@click.option("--since", default="origin/main", show_default=True, help="A revision of git.")
@click.option("--list", "listed", is_flag=True, help="Say what would run; run nothing.")
@click.argument("pytest_args", nargs=-1)
def main(since: str, listed: bool, pytest_args: tuple[str, ...]) -> None:
    """Run what a change touches."""
    console, files = Console(soft_wrap=True, highlight=False), set(changed_since(since))
    tests, names = long_tests(files), mutations(files)
    kernels = any(each.startswith(ENGINE) or parts.has_kernels(each) for each in files)
    console.print(
        f"{len(files)} files changed: {len(tests)} files of long tests, {len(names)} mutations"
        + (", and the kernels' tests in the release build" if kernels else "")
    )
    if listed:
        for each in (*tests, *names):
            console.print(f"  {each}")
        return
    pytest = [sys.executable, "-m", "pytest", *pytest_args, "-m"]
    long = [*pytest, "long", "--timeout", "1800", "-o", "faulthandler_timeout=3600", *tests]
    commands = [
        long if tests else [],
        [*pytest, "not long", *RELEASE] if kernels else [],
        [sys.executable, "-m", "tests.mutation", *names] if names else [],
    ]
    codes = [subprocess.run(run, cwd=ROOT, check=False).returncode for run in commands if run]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
