"""Two examples or more of every command, for its help. A test parses each line.

A group shows the first example of each of its commands.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

OF_A_GROUP_MAX = 4

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": ("tidecast up", "tidecast up --detach --no-control --data-dir /tmp/demo"),
    "down": ("tidecast down", "tidecast down --data-dir /tmp/demo --json"),
    "engine": (
        "tidecast engine --data-dir /tmp/demo",
        "tidecast engine --gateway 127.0.0.1:7400 --telemetry 10s",
    ),
    "control": (
        "tidecast control",
        "TIDECAST_DATABASE_URL=postgresql://db/tidecast tidecast control --port 7480",
    ),
    "cluster status": (
        "tidecast cluster status",
        "tidecast cluster status --json --control https://control.example",
    ),
    "cluster upgrade": (
        "tidecast cluster upgrade",
        "tidecast cluster upgrade --finalize --control https://control.example",
    ),
    "cluster drain": (
        "tidecast cluster drain db1 --dry-run",
        "tidecast cluster drain db1 --timeout 60 --control https://control.example",
    ),
    "cluster undrain": (
        "tidecast cluster undrain db1",
        "tidecast cluster undrain db1 --control https://control.example",
    ),
    "cluster moves": (
        "tidecast cluster moves --topic orders",
        "tidecast cluster moves --node db1 --limit 500 --json",
    ),
    "node rotate": (
        "tidecast node rotate db1",
        "tidecast node rotate db1 --control https://control.example",
    ),
    "node revoke": (
        "tidecast node revoke db1",
        "tidecast node revoke db1 --control https://control.example",
    ),
    "api": (
        "tidecast api GET /topics",
        "tidecast api POST /apply --type application/yaml --data @platform.yaml",
    ),
    "topic create": (
        "tidecast topic create md.eu --flow rate --rate-bytes-per-s 10MB",
        "tidecast topic create orders --mode durable --queues 4 --retention-s 7d",
    ),
    "topic list": ("tidecast topic list", "tidecast topic list 'md.>' --json"),
    "topic show": ("tidecast topic show orders", "tidecast topic show orders --json"),
    "topic edit": (
        "tidecast topic edit md.eu --rate-packets-per-s 500",
        "tidecast topic edit md.eu --history-bytes 16MiB --recreate",
    ),
    "topic delete": ("tidecast topic delete md.eu", "tidecast topic delete md.eu --yes"),
    "queue list": ("tidecast queue list", "tidecast queue list orders --json"),
    "queue inspect": (
        "tidecast queue inspect orders 0",
        "tidecast queue inspect orders 2 --offset 1000 --batches 5",
    ),
    "queue verify": ("tidecast queue verify", "tidecast queue verify orders --queue 0 --json"),
    "queue orphans": ("tidecast queue orphans", "tidecast queue orphans --remove --yes --json"),
    "queue pause": ("tidecast queue pause orders", "tidecast queue pause orders 2"),
    "queue scheduled": (
        "tidecast queue scheduled orders",
        "tidecast queue scheduled orders --key ada --subscription billing --json",
    ),
    "queue cancel": (
        "tidecast queue cancel orders --key ada --dry-run",
        "tidecast queue cancel orders --record 0:17 --record 1:4 --subscription billing",
    ),
    "queue resume": ("tidecast queue resume orders", "tidecast queue resume orders 2"),
    "run": (
        "tidecast run billing:app --health 127.0.0.1:8080",
        "tidecast run billing:app --workers 4 --drain-timeout 1m",
        "tidecast run billing:app --check --json",
    ),
    "pub": (
        "tidecast pub greetings --message 'hello, tide'",
        "tidecast pub logs app.log --rate 1000",
        "printf 'k1:one\\nk2:two\\n' | tidecast pub orders - --key-from :: --ack durable",
    ),
    "sub": (
        "tidecast sub greetings --keys",
        "tidecast sub 'md.>' --json --count 10",
        "tidecast sub orders --from -1h --until-end --format '%p:%o %k %s\\n'",
        "tidecast sub orders --subscription billing --until-end",
    ),
    "mirror": (
        "tidecast mirror --from kafka://127.0.0.1:9092/orders --to orders --once",
        "tidecast mirror --from kafka://127.0.0.1:9092/orders --to orders --rate 5000 --json",
    ),
    "mirror list": ("tidecast mirror list", "tidecast mirror list --json"),
    "mirror show": ("tidecast mirror show orders", "tidecast mirror show orders --json"),
    "mirror create": (
        "tidecast mirror create orders --from kafka://127.0.0.1:9092/orders --to orders",
        "tidecast mirror create out --from orders --to kafka://127.0.0.1:9092/orders --rate 5000",
    ),
    "mirror pause": ("tidecast mirror pause orders", "tidecast mirror pause orders --dry-run"),
    "mirror resume": ("tidecast mirror resume orders", "tidecast mirror resume orders --json"),
    "mirror delete": ("tidecast mirror delete orders", "tidecast mirror delete orders --dry-run"),
    "request": (
        "tidecast request prices.get EURUSD --timeout 1s",
        "cat question.txt | tidecast request who - --all --json",
    ),
    "reply": (
        "tidecast reply prices.get --command 'xargs ./price.sh' --concurrency 4",
        "tidecast reply who --text db1 --group eu --json",
    ),
    "top": ("tidecast top", "tidecast top --once --json --interval 500ms"),
    "recorder": ("tidecast recorder --section alert", "tidecast recorder --previous --json"),
    "faults set": (
        "tidecast faults set --drop 0.05 --seed 7",
        "tidecast faults set --delay 2ms --partition db1,db2",
    ),
    "faults clear": ("tidecast faults clear", "tidecast faults clear --transport multicast"),
    "faults show": ("tidecast faults show", "tidecast faults show --json"),
    "pipeline archive": (
        "tidecast pipeline archive --topic orders --out archive",
        "tidecast pipeline archive --pattern 'orders.*' --out archive --json",
    ),
    "pipeline replay": (
        "tidecast pipeline replay --archive archive --from orders --topic orders2 --dry-run",
        "tidecast pipeline replay --archive archive --from orders --topic orders2 --rate 1000",
    ),
    "pipeline rollup": (
        "tidecast pipeline rollup --out rollups",
        "tidecast pipeline rollup --out rollups --watermark '1 hour'",
    ),
    "pipeline backfill": (
        "tidecast pipeline backfill --out rollups",
        "tidecast pipeline backfill --out rollups --topic tidecast.telemetry",
    ),
    "pipeline report": (
        "tidecast pipeline report --rollups rollups --out report.html",
        "tidecast pipeline report --rollups rollups --out report.html --hours 24",
    ),
    "pipeline warm-up": ("tidecast pipeline warm-up", "tidecast pipeline warm-up --again"),
    "pipeline package": (
        "tidecast pipeline package --out tidecast.zip",
        "tidecast pipeline package --out /tmp/tidecast.zip",
    ),
    "subscription list": ("tidecast subscription list", "tidecast subscription list --json"),
    "subscription show": (
        "tidecast subscription show orders billing",
        "tidecast subscription show orders billing --json",
    ),
    "subscription create": (
        "tidecast subscription create orders billing --max-deliver 3 --dead-letter orders.dead",
        "tidecast subscription create orders eu --start -1h --where 'key.startswith(\"eu.\")'",
    ),
    "subscription delete": (
        "tidecast subscription delete orders billing",
        "tidecast subscription delete orders billing --yes",
    ),
    "subscription pause": (
        "tidecast subscription pause orders billing",
        "tidecast subscription pause orders billing --json",
    ),
    "subscription resume": (
        "tidecast subscription resume orders billing",
        "tidecast subscription resume orders billing --json",
    ),
    "subscription seek": (
        "tidecast subscription seek orders billing --to -1h --dry-run",
        "tidecast subscription seek orders billing --shift -100 --queue 2",
    ),
    "subscription redrive": (
        "tidecast subscription redrive orders billing --reason timeout --dry-run",
        "tidecast subscription redrive orders billing --where 'size < 1000' --limit 100",
    ),
    "kafka groups": (
        "tidecast kafka groups --topic orders",
        "tidecast kafka groups --state Empty --json",
    ),
    "kafka group": ("tidecast kafka group billing", "tidecast kafka group billing --json"),
    "kafka clients": ("tidecast kafka clients", "tidecast kafka clients --limit 20 --json"),
    "kafka reset": (
        "tidecast kafka reset billing --to -1h --dry-run",
        "tidecast kafka reset billing --topic orders --queue 2 --shift -100",
    ),
    "kafka delete": (
        "tidecast kafka delete billing --dry-run",
        "tidecast kafka delete billing --yes",
    ),
    "subscription peek": (
        "tidecast subscription peek orders billing",
        "tidecast subscription peek orders billing --limit 3 --json",
    ),
    "key new": (
        "tidecast key new shop --allow 'publish:orders.*' --allow 'subscribe:orders.>'",
        "tidecast key new report --allow 'read_payloads:>' --expires 90d",
    ),
    "wire keys new": (
        "tidecast wire keys new multicast",
        "tidecast wire keys new multicast --activate-after 30m --data-dir /tmp/demo",
    ),
    "wire keys rotate": (
        "tidecast wire keys rotate multicast",
        "tidecast wire keys rotate multicast --activate-after 1h --retire-after 5m",
    ),
    "wire keys show": ("tidecast wire keys show", "tidecast wire keys show --json"),
    "bench all": ("tidecast bench all --json", "tidecast bench all --peers"),
    "bench spark": ("tidecast bench spark", "tidecast bench spark --only source --rows 1000000"),
    "doctor": ("tidecast doctor", "tidecast doctor --topology topology.yaml --json"),
    "completion": (
        "source <(tidecast completion bash)",
        "tidecast completion fish > ~/.config/fish/completions/tidecast.fish",
    ),
}
"""Command -> lines as a shell takes them."""


def examples_of(name: str, command: click.Command) -> list[str]:
    """The examples of a command, or of a group's commands."""
    if name in EXAMPLES:
        return list(EXAMPLES[name])
    if isinstance(command, click.Group):
        of_commands = [examples_of(f"{name} {n}", c) for n, c in command.commands.items()]
        return [lines[0] for lines in of_commands if lines][:OF_A_GROUP_MAX]
    if name.startswith("bench "):
        return [f"tidecast {name}", f"tidecast {name} --json"]
    return []


def add_examples(name: str, command: click.Command) -> None:
    """Let the help of a command and of its subcommands end with examples."""
    for below, each in _walk(name, command):
        lines = examples_of(below, each)
        if lines:
            each.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            yield from _walk(f"{name} {below}", each)
