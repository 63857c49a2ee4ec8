"""Options of an engine's endpoints: its gateway and its Kafka endpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import click

from tidecast.cli.common import F


def gateway_options(default: str) -> Callable[[F], F]:
    """The options of a gateway, which a command gets as one argument."""
    file = click.Path(path_type=Path, dir_okay=False, exists=True)
    options = (
        click.option(
            "--gateway",
            default=default,
            show_default=True,
            metavar="HOST:PORT",
            help="Serve remote clients there (auto: loopback, port 7400 or a free one; off: not at "
            "all). The token is in gateway.token in the data directory.",
        ),
        click.option(
            "--gateway-cert",
            type=file,
            envvar="TIDECAST_GATEWAY_CERT",
            help="Its TLS certificate, a PEM file; loaded again when it changes "
            "[env: TIDECAST_GATEWAY_CERT].",
        ),
        click.option(
            "--gateway-key",
            type=file,
            envvar="TIDECAST_GATEWAY_KEY",
            help="The certificate's private key [env: TIDECAST_GATEWAY_KEY].",
        ),
        click.option(
            "--insecure-gateway",
            is_flag=True,
            envvar="TIDECAST_INSECURE_GATEWAY",
            help="Serve other hosts in clear text: a network that is trusted, or a TLS "
            "proxy in front [env: TIDECAST_INSECURE_GATEWAY].",
        ),
    )

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapped(
            gateway: str,
            gateway_cert: Path | None,
            gateway_key: Path | None,
            insecure_gateway: bool,
            **given: Any,
        ) -> Any:
            from tidecast.gateway.settings import GatewaySettings

            chosen = GatewaySettings(gateway, gateway_cert, gateway_key, insecure_gateway)
            return command(gateway=chosen, **given)

        made = cast("F", wrapped)
        for option in reversed(options):
            made = option(made)
        return made

    return decorate


def kafka_options(command: F) -> F:
    """The options of a Kafka endpoint, as settings that override the topology."""
    file = click.Path(path_type=Path, dir_okay=False, exists=True)
    options = (
        click.option(
            "--kafka",
            "listen",
            metavar="HOST:PORT",
            help="Serve Kafka clients there (:PORT for loopback; off: not at all). See "
            "docs/KAFKA.md. [default: `kafka` in the topology, else off]",
        ),
        click.option(
            "--kafka-advertised",
            "advertised",
            metavar="HOST:PORT",
            help="The address that Kafka clients get. [default: the address that each reached]",
        ),
        click.option(
            "--kafka-cert",
            "certificate",
            type=file,
            envvar="TIDECAST_KAFKA_CERT",
            help="Its TLS certificate, a PEM file [env: TIDECAST_KAFKA_CERT].",
        ),
        click.option(
            "--kafka-key",
            "key",
            type=file,
            envvar="TIDECAST_KAFKA_KEY",
            help="The certificate's private key [env: TIDECAST_KAFKA_KEY].",
        ),
        click.option(
            "--insecure-kafka",
            "insecure",
            is_flag=True,
            default=None,
            envvar="TIDECAST_INSECURE_KAFKA",
            help="Serve other hosts in clear text: a network that is trusted, or a TLS "
            "proxy in front [env: TIDECAST_INSECURE_KAFKA].",
        ),
    )

    names = ("listen", "advertised", "certificate", "key", "insecure")

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        chosen = {name: given.pop(name) for name in names}
        kafka = {
            name: str(value.absolute()) if isinstance(value, Path) else value
            for name, value in chosen.items()
            if value is not None
        }
        return command(kafka=kafka, **given)

    made = cast("F", wrapped)
    for option in reversed(options):
        made = option(made)
    return made
