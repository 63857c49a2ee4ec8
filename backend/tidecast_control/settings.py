"""Settings, from the environment (``TIDECAST_CONTROL_*``). Unsafe ones are refused."""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    Field,
    IPvAnyNetwork,
    SecretStr,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tidecast.config.topology import default_data_dir
from tidecast.errors import ConfigError
from tidecast_control.addresses import AddressPolicy

PORT_DEFAULT = 7480
SESSION_COOKIE = "tidecast_session"
HostName = Annotated[
    str, StringConstraints(pattern=r"^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?$")
]
"""Without a port; `*.` in front: all names below."""


class Settings(BaseSettings):
    """The settings of an operator."""

    model_config = SettingsConfigDict(
        env_prefix="TIDECAST_CONTROL_", extra="ignore", populate_by_name=True
    )

    data_dir: Path = Field(
        default_factory=default_data_dir,
        validation_alias=AliasChoices("data_dir", "TIDECAST_DATA_DIR"),
    )
    topology_file: Path | None = None
    """First resources of a new platform; None: `topology.yaml` in the data directory, if there."""

    database_url: SecretStr | None = Field(
        None, validation_alias=AliasChoices("database_url", "TIDECAST_DATABASE_URL")
    )
    """postgresql://...; None: an embedded Postgres in the data directory."""

    host: str = "127.0.0.1"
    port: int = Field(PORT_DEFAULT, ge=0, le=65_535)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    behind_tls_proxy: bool = False
    """A proxy in front of this service does TLS: cookies are Secure, its headers are believed."""
    allow_plain_http: bool = False
    """Listen beyond loopback without TLS: passwords and keys then cross the network readable."""

    allow_faults: bool = False
    session_hours: float = Field(12.0, gt=0, le=24 * 31)
    session_idle_hours: float = Field(2.0, gt=0, le=24 * 31)
    pool_size: int = Field(16, ge=2, le=200)
    telemetry_hz: float = Field(4.0, ge=1.0, le=4.0)
    alert_interval_s: float = Field(5.0, ge=0.05, le=300)
    audit_days: float = Field(400.0, ge=1, le=10_000)
    wire_keys_hours: float = Field(24.0, ge=0, le=10_000)
    """Secrets of sealed transports are rotated at this age; 0: by hand, and when a node is out."""
    secrets_key_file: Path | None = None
    """Keys that seal the secrets in the database; None: `secrets.key` in the data directory."""

    forget_secrets: bool = False
    """At the start, replace or delete secrets in the database that none of the keys opens."""

    example_topic: bool = False
    spark_master: str = Field("local[*]", pattern=r"^[A-Za-z0-9_.:/,*\[\]-]{1,500}$")
    """Where pipelines run."""

    pipelines_max: int = Field(2, ge=0, le=100)
    """Runs of pipelines that are under way at once on this service, each a process."""

    mirrors_max: int = Field(16, ge=0, le=1000)
    """Mirrors that run at once on this service, each a process."""

    allowed_origins: Annotated[list[str], NoDecode] = []
    allowed_hosts: Annotated[list[HostName], NoDecode] = []
    """Names that requests may use for this service, besides loopback, `host` and IP addresses."""
    trusted_proxies: Annotated[list[IPvAnyNetwork], NoDecode] = Field(
        default_factory=lambda: [ip_network("127.0.0.0/8"), ip_network("::1")]
    )
    """Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, with `behind_tls_proxy`."""
    webhook_networks: Annotated[list[IPvAnyNetwork], NoDecode] = []
    """Networks that webhooks may reach besides public addresses."""

    @field_validator(
        "allowed_origins", "allowed_hosts", "trusted_proxies", "webhook_networks", mode="before"
    )
    @classmethod
    def _list(cls, value: Any) -> Any:
        return (
            [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value
        )

    @field_validator("database_url")
    @classmethod
    def _postgres_only(cls, value: SecretStr | None) -> SecretStr | None:
        url = value.get_secret_value() if value is not None else ""
        if url and not url.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
            raise ValueError("allowed is postgresql://USER:PASSWORD@HOST/DATABASE")
        return value if url else None

    @model_validator(mode="after")
    def _safe(self) -> Settings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key: set both, or neither")
        for path in (self.tls_certificate, self.tls_key):
            if path is not None and not path.is_file():
                raise ValueError(f"{path}: no such file")
        plain = not (self.tls or self.behind_tls_proxy or self.allow_plain_http)
        if plain and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host}: beyond loopback it needs TLS: set tls_certificate and tls_key, "
                "or behind_tls_proxy, or (passwords then cross the network readable) "
                "allow_plain_http"
            )
        if "*" in self.allowed_origins:
            raise ValueError("allowed_origins: `*` is not allowed: name the origins")
        return self

    @property
    def webhook_policy(self) -> AddressPolicy:
        """Which addresses webhooks may reach."""
        return AddressPolicy(self.webhook_networks)

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names that it listens on; beyond loopback also the machine's name."""
        if is_loopback(self.host):
            return (self.host,)
        name = socket.gethostname()
        return self.host, name, name.partition(".")[0]

    @property
    def tls(self) -> bool:
        """The service does TLS itself."""
        return self.tls_certificate is not None

    @property
    def session_cookie(self) -> str:
        """The session cookie's name. `__Host-`: browsers take it from this host by https alone."""
        return f"__Host-{SESSION_COOKIE}" if self.secure_cookies else SESSION_COOKIE

    @property
    def secure_cookies(self) -> bool:
        """Browsers reach the service by https."""
        return self.tls or self.behind_tls_proxy


def is_loopback(host: str) -> bool:
    """The address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_settings(**options: Any) -> Settings:
    """Settings from the environment and from the arguments. Raises ConfigError naming each."""
    try:
        return Settings(**{k: v for k, v in options.items() if v is not None})
    except ValidationError as problem:
        problems = []
        for each in problem.errors(include_url=False, include_input=False):
            where = ".".join(str(part) for part in each["loc"])
            text = each["msg"].removeprefix("Value error, ")
            problems.append(f"{where}: {text}" if where else text)
        raise ConfigError("control service: " + "; ".join(problems), problems) from None
