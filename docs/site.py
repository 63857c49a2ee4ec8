"""The pages of the site that are made from something else: README, command line, OpenAPI.

A hook of MkDocs (see mkdocs.yml): nothing of it is written to the disk but the site itself.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
TAKEN_OVER = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks/RESULTS.md": "benchmarks/RESULTS.md",
}
"""Pages outside docs/, and where they stand in the site."""
PYTHON = {
    "python-sync": (
        "Python, blocking",
        "tidecast.client.blocking.connect", "tidecast.client.blocking.Connection",
        "tidecast.client.flows.connection.ConnectionFlows", "tidecast.client.blocking.Publisher",
        "tidecast.client.blocking.Subscription", "tidecast.client.consumer.blocking.Consumer",
        "tidecast.client.blocking.Responder", "tidecast.client.blocking.Replies",
        "tidecast.client.log.blocking.Records",
        "tidecast.client.admin.blocking.Topics", "tidecast.client.admin.blocking.Subscriptions",
        "tidecast.rest.blocking.Control",
    ),
    "python-asyncio": (
        "Python, asyncio",
        "tidecast.client.connecting.connect", "tidecast.client.aio.Connection",
        "tidecast.client.flows.connection.ConnectionFlows", "tidecast.client.aio.Publisher",
        "tidecast.client.aio.Subscription", "tidecast.client.consumer.aio.Consumer",
        "tidecast.client.aio.Responder", "tidecast.client.aio.Replies",
        "tidecast.client.log.aio.Records",
        "tidecast.client.admin.aio.Topics", "tidecast.client.admin.aio.Subscriptions",
        "tidecast.rest.aio.Control",
    ),
    "python-types": (
        "Messages, events, errors, settings",
        "tidecast.client.core.message.Message", "tidecast.client.core.message.Batch",
        "tidecast.client.consumer.message.DurableMessage",
        "tidecast.client.consumer.message.DurableBatch",
        "tidecast.client.log.records.LogRecord", "tidecast.client.log.records.LogBatch",
        "tidecast.client.requests.responder.Request", "tidecast.client.admin.types",
        "tidecast.api.start",
        "tidecast.events.base", "tidecast.events.live", "tidecast.events.transport",
        "tidecast.events.durable", "tidecast.events.consumers", "tidecast.events.storage",
        "tidecast.events.access", "tidecast.events.kafka",
        "tidecast.errors", "tidecast.config.topology",
    ),
    "python-apps": (
        "Applications",
        "tidecast.app.application.App", "tidecast.app.application.Running",
        "tidecast.app.handlers.Retry", "tidecast.app.handlers.Publish",
        "tidecast.app.handlers.Reject", "tidecast.app.handlers.RetryLater",
        "tidecast.app.parameters.Key", "tidecast.app.parameters.Header",
        "tidecast.app.parameters.Depends",
    ),
    "python-testing": (
        "Testing",
        "tidecast.testing.memory.connect", "tidecast.testing.memory.connect_async",
        "tidecast.testing.network.Network", "tidecast.testing.network.SimulatedNode",
        "tidecast.testing.plugin",
    ),
}  # fmt: skip
"""Page -> its title, and the objects whose docstrings it shows."""
_CODE_OR_LINK = re.compile(
    r"^ *```.*?^ *```|`[^`\n]+`|(?P<bang>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {"reference/cli.md": "\n".join(cli_page()), "reference/rest.md": "\n".join(rest_page())}
    for name, (title, *objects) in PYTHON.items():
        blocks = "\n\n".join(f"::: {path}" for path in objects)
        made[f"reference/{name}.md"] = f"# {title}\n\n{blocks}\n"
    for source, target in TAKEN_OVER.items():
        made[target] = (ROOT / source).read_text("utf-8")
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they hold in the repository, rewritten to hold in the site."""
    del config
    place = page.file.src_uri
    source = next((s for s, t in TAKEN_OVER.items() if t == place), f"docs/{place}")

    def rewritten(link: re.Match[str]) -> str:
        bang, text, target = link["bang"], link["text"], link["target"]
        if target is None:
            return link.group()
        name, mark, anchor = target.partition("#")
        if not name or re.match(r"[a-z][a-z0-9+.-]*:", target):
            return link.group()
        path = (ROOT / source).parent.joinpath(name).resolve().relative_to(ROOT).as_posix()
        path = f"{path}/README.md" if (ROOT / path / "README.md").is_file() else path
        uri = TAKEN_OVER.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(uri) is None:
            return text  # a source file: it is in the repository, not in the site
        up = "../" * place.count("/")
        return f"{bang}[{text}]({up}{uri}{mark}{anchor})"

    return _CODE_OR_LINK.sub(rewritten, markdown)


# --- the command line -----------------------------------------------------------------------------


def cli_page() -> Iterator[str]:
    """Every command with its options, as `--help` has them."""
    from tidecast.cli import main

    yield "# Command line\n"
    yield "Made from the commands themselves; `--help` says the same.\n"
    yield from _command(main, "tidecast", 2)


def _command(command: click.Command, path: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"{'#' * min(level, 4)} {path}\n"
    yield f"```text\n{usage}\n```\n"
    yield inspect.cleandoc(command.help or "").replace("\b", "").replace("<", "&lt;") + "\n"
    rows = [p.get_help_record(context) for p in command.params if isinstance(p, click.Option)]
    shown = [row for row in rows if row]
    if shown:
        yield "| option | meaning |\n|---|---|"
        yield from (f"| `{_cell(name)}` | {_cell(text)} |" for name, text in shown)
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(inner, f"{path} {name}", level + 1)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


# --- the REST API ---------------------------------------------------------------------------------


def rest_page() -> Iterator[str]:
    """Every path and every shape of `backend/openapi.json`."""
    document = json.loads((ROOT / "backend/openapi.json").read_bytes())
    yield "# REST API\n"
    yield "Made from the OpenAPI document. How it hangs together: [CONTROL.md](../CONTROL.md).\n"
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            by_tag.setdefault((about.get("tags") or ["system"])[0], []).append(
                (method.upper(), path, about)
            )
    for tag, found in sorted(by_tag.items()):
        yield f"## {tag}\n"
        for method, path, about in found:
            yield from _operation(method, path, about)
    yield "## Shapes\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _shape(name, schema)


def _operation(method: str, path: str, about: dict[str, Any]) -> Iterator[str]:
    yield f"### {method} {path}\n"
    yield (about.get("description") or about.get("summary") or "").replace("<", "&lt;") + "\n"
    rows = []
    for parameter in about.get("parameters", ()):
        must = "yes" if parameter.get("required") else ""
        kind = _kind(parameter.get("schema", {}))
        rows.append((parameter["name"], parameter["in"], kind, must, parameter.get("description")))
    if rows:
        yield "| parameter | in | type | needed | meaning |\n|---|---|---|---|---|"
        for name, where, kind, must, text in rows:
            yield f"| `{name}` | {where} | {kind} | {must} | {_cell(text or '')} |"
        yield ""
    body = about.get("requestBody", {}).get("content", {})
    for media, content in body.items():
        yield f"Body, `{media}`: {_kind(content.get('schema', {}))}\n"
    for code, answer in about.get("responses", {}).items():
        for content in answer.get("content", {}).values():
            if code.startswith("2"):
                yield f"Answer {code}: {_kind(content.get('schema', {}))}\n"


def _shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {_title(name)}\n"
    if schema.get("description"):
        yield schema["description"].replace("<", "&lt;") + "\n"
    if schema.get("enum"):
        yield "One of " + ", ".join(f"`{one}`" for one in schema["enum"]) + ".\n"
    fields = schema.get("properties", {})
    if fields:
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        for field, about in fields.items():
            default = f"`{json.dumps(about['default'])}`" if "default" in about else ""
            text = _cell(about.get("description", ""))
            yield f"| `{field}` | {_kind(about)} | {_cell(default)} | {text} |"
        yield ""


def _title(name: str) -> str:
    return name.replace("_", " ").strip()


def _kind(schema: dict[str, Any]) -> str:
    """The type of a value, in a word or two, with its limits."""
    if "$ref" in schema:
        name = _title(schema["$ref"].rpartition("/")[2])
        return f"[{name}](#{re.sub(r'[^a-z0-9 -]', '', name.lower()).replace(' ', '-')})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_kind(one) for one in schema[key]))
    if schema.get("enum"):
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        return f"{kind} {'' if low is None else low}..{'' if high is None else high}"
    return kind if kind != "null" else "null"
