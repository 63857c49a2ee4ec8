"""Where a gateway listens, and how, from the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidecast.config.certificate import Certificate
from tidecast.errors import ConfigError


@dataclass(frozen=True)
class GatewaySettings:
    """Where a gateway listens, and how.

    ``where``: HOST:PORT; ``auto``: loopback, on PORT, or on any free port when that is taken; or
    ``off``. ``certificate``, ``key``: PEM files. ``insecure``: clear text beyond loopback is meant.
    """

    where: str = "off"
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False

    @property
    def words(self) -> list[str]:
        """The same as options of the command line."""
        found = ["--gateway", self.where]
        for option, path in (("--gateway-cert", self.certificate), ("--gateway-key", self.key)):
            found += [option, str(path.absolute())] if path is not None else []
        return found + (["--insecure-gateway"] if self.insecure else [])

    def loaded(self) -> Certificate | None:
        """The certificate. Raises ConfigError."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("gateway: --gateway-cert and --gateway-key: give both, or neither")
        if self.certificate is None or self.key is None:
            return None
        return Certificate("gateway", self.certificate, self.key)
