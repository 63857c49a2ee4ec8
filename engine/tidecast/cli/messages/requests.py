"""`tidecast request` and `tidecast reply`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import (
    Stop,
    data_dir_option,
    echo_json,
    server_option,
    stoppable,
    token_option,
    warn,
)
from tidecast.cli.messages import formats
from tidecast.cli.messages.pub import headers_of, url_of
from tidecast.cli.options.names import TopicName
from tidecast.cli.options.params import Duration

if TYPE_CHECKING:
    from tidecast.client.blocking import Connection, Responder
    from tidecast.client.core.message import Message
    from tidecast.client.requests.responder import Request

ERROR_BYTES_MAX = 500


class CommandFailed(Exception):
    """The command of `tidecast reply` did not succeed; its requester gets this name and text."""


@click.command()
@click.argument("topic", type=TopicName())
@click.argument("payload", metavar="PAYLOAD|-")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(low=0, above=True),
    default=5.0,
    show_default=True,
    help="Fail when no reply came for so long.",
)
@click.option(
    "--all", "of_all", is_flag=True, help="Ask each group of responders, and all outside of groups."
)
@click.option(
    "--max-replies", type=click.IntRange(1), metavar="N", help="With --all: stop after N replies."
)
@click.option("--key", default=None, metavar="TEXT", help="Key of the request.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a reply, for scripts.")
@click.option("--raw", is_flag=True, help="The reply, byte for byte, without a newline.")
@data_dir_option
@token_option
@server_option
def request(
    topic: str,
    payload: str,
    timeout_s: float,
    of_all: bool,
    max_replies: int | None,
    key: str | None,
    headers: tuple[str, ...],
    as_json: bool,
    raw: bool,
    data_dir: Path,
    token: str | None,
    server: str | None,
) -> None:
    """Send PAYLOAD (-: standard input) to a responder of TOPIC, and write its reply.

    Fails at once when no responder serves the topic, and when the responder reports an error.
    """
    from tidecast.errors import RequestTimeout
    from tidecast.sync import connect

    if max_replies is not None and not of_all:
        raise click.UsageError("--max-replies limits the replies of several: give --all too")
    if as_json and raw:
        raise click.UsageError("--json and --raw: give one of them")
    data = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    options: dict[str, Any] = {"timeout": timeout_s, "key": key, "headers": headers_of(headers)}
    terminal = sys.stdout.isatty()
    writer = formats.lines("", terminal=terminal)
    if as_json or raw:
        writer = formats.json_lines if as_json else formats.raw

    def write(reply: Message) -> None:
        sys.stdout.buffer.write(writer([reply]))
        sys.stdout.buffer.flush()

    with connect(server or url_of(data_dir), name="tidecast request", token=token) as client:
        if not of_all:
            write(client.request(topic, data, **options))
            return
        replies = client.request_many(topic, data, max_replies=max_replies, **options)
        for reply in replies:
            write(reply)
        for problem in replies.failures:
            warn(str(problem))
        if replies.missing and max_replies is None:
            raise RequestTimeout(
                f"topic {topic}: {replies.missing} of {replies.asked} responders did not reply "
                f"within {timeout_s:g} s"
            )


@click.command()
@click.argument("topic", type=TopicName())
@click.option(
    "--command",
    metavar="COMMAND",
    help="A command of the shell: it reads the request on standard input and writes the reply. "
    "If it fails, its requester gets an error.",
)
@click.option("--echo", is_flag=True, help="Reply with the request itself.")
@click.option("--text", metavar="TEXT", help="Reply with this text.")
@click.option("--group", metavar="NAME", help="`request --all` asks one responder of a group.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="So many commands at a time.",
)
@click.option("--count", type=click.IntRange(1), default=None, metavar="N", help="Stop after N.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(low=0, above=True),
    default=60.0,
    show_default=True,
    help="End a command that takes longer; its requester gets an error.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a request, for scripts.")
@click.option("--quiet", is_flag=True, help="Nothing on standard error but errors.")
@data_dir_option
@token_option
@server_option
def reply(
    topic: str,
    command: str | None,
    echo: bool,
    text: str | None,
    group: str | None,
    concurrency: int,
    count: int | None,
    timeout_s: float,
    as_json: bool,
    quiet: bool,
    data_dir: Path,
    token: str | None,
    server: str | None,
) -> None:
    """Respond to the requests on TOPIC, until Ctrl-C.

    A command gets the topic, and the key if there is one, as TIDECAST_TOPIC and TIDECAST_KEY.
    """
    from tidecast.sync import connect

    if (command is not None) + echo + (text is not None) != 1:
        raise click.UsageError("give one of --command, --echo and --text")
    if command is not None:
        handler: Callable[[Request], bytes] = _runner(command, timeout_s)
    else:
        handler = _constant(None if text is None else text.encode())
    if as_json:
        handler = _told(handler)
    with connect(server or url_of(data_dir), name="tidecast reply", token=token) as client:
        responder = client.responder(topic, group=group)
        said = "" if quiet else f"responding on {topic}"
        _serve(client, responder, handler, concurrency, count, said)


def _serve(
    client: Connection,
    responder: Responder,
    handler: Callable[[Request], bytes],
    concurrency: int,
    count: int | None,
    said: str,
) -> None:
    stop = Stop()
    try:
        with stoppable(stop):
            if said:
                click.echo(said, err=True)
            if count is None:
                responder.serve(handler, concurrency)
                return
            with ThreadPoolExecutor(concurrency) as pool:
                for each in islice(responder, count):
                    pool.submit(responder.answer, handler, each)
    except KeyboardInterrupt:
        client.close()
        sys.exit(stop.code)


def _told(handler: Callable[[Request], bytes]) -> Callable[[Request], bytes]:
    """The handler, and a line of JSON for each request with its reply or error."""
    one_at_a_time = threading.Lock()

    def run(asked: Request) -> bytes:
        began, found = time.perf_counter(), formats.json_object(asked)
        try:
            made = handler(asked)
        except Exception as problem:
            found["error"] = f"{type(problem).__name__}: {problem}"
            raise
        else:
            found |= formats.text_or_base64("reply", made)
            return made
        finally:
            found["seconds"] = round(time.perf_counter() - began, 6)
            with one_at_a_time:
                echo_json(found)

    return run


def _constant(text: bytes | None) -> Callable[[Request], bytes]:
    return lambda asked: asked.data if text is None else text


def _runner(command: str, timeout_s: float) -> Callable[[Request], bytes]:
    def run(asked: Request) -> bytes:
        environment = {**os.environ, "TIDECAST_TOPIC": asked.topic}
        if asked.key is not None:
            environment["TIDECAST_KEY"] = asked.key.decode("utf-8", "replace")
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        try:
            out, said = process.communicate(asked.data, timeout_s)
        except BaseException as problem:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the shell and its children
            process.communicate()
            if isinstance(problem, subprocess.TimeoutExpired):
                raise CommandFailed(f"it took longer than {timeout_s:g} s") from None
            raise
        if process.returncode:
            text = said[-ERROR_BYTES_MAX:].decode("utf-8", "replace").strip()
            raise CommandFailed(f"exit code {process.returncode}: {text}".rstrip(": "))
        return out

    return run
