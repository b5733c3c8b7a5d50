"""ClusterConfig: one entry of ``clusters:``, validated and frozen. Addresses are used exactly as written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    field_serializer,
    field_validator,
    model_validator,
)

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import ClusterMetadata, parse_resources
from ray_multicluster_scheduler.control_plane.config.environment_spec import normalise_runtime_env
from ray_multicluster_scheduler.control_plane.config.settings import Strict

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NOT_FOR_PLACEMENT = {"auth_token", "auth_token_path", "tls", "connector_python", "agent_port", "agent_address"}
_CONNECTION_FIELDS = (
    *("dashboard", "head_address", "auth_token", "auth_token_path", "tls"),
    *("carrier", "python", "agent_port", "agent_address", "connector_python"),
)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]"
_HOST_PORT = re.compile(rf"(?:{_HOST}):([0-9]{{1,9}})")
_DASHBOARD = re.compile(rf"https?://(?:{_HOST}):([0-9]{{1,9}})(?:/[^\s?#]*)?")
_WITH_USER = re.compile(r"[a-z]+://[^/]*@")
_MAX_PORT = 65535


def _check_host_port(value: str) -> str:
    """Check ``host:port``. Raises ValueError with a sentence."""
    match = _HOST_PORT.fullmatch(value)
    if match is None:
        raise ValueError(f"expected host:port, for example 192.168.5.7:10001, got {value!r}")
    _check_port(match.group(1), value, "host:port")
    return value


def _check_dashboard(value: str) -> str:
    """Check ``http(s)://host:port[/path]`` without user, query or fragment. Raises ValueError with a sentence."""
    if _WITH_USER.match(value):
        raise ValueError("the address must not contain a user name or password; give the token as auth_token")
    match = _DASHBOARD.fullmatch(value)
    if match is None:
        expected = "expected http://host:port or https://host:port, for example http://192.168.5.7:8265"
        raise ValueError(f"{expected}, got {value!r}")
    _check_port(match.group(1), value, "http://host:port or https://host:port")
    return value.rstrip("/")


def _check_port(text: str, value: str, shape: str) -> None:
    if not 0 < int(text) <= _MAX_PORT:
        raise ValueError(f"expected {shape} with a port from 1 to {_MAX_PORT}, got {value!r}, where it is {text}")


def _check_home(value: str) -> str:
    if not value.startswith("/") or not value.strip("/"):
        raise ValueError(f"expected an absolute path other than /, got {value!r}")
    return value.rstrip("/")


HostPort = Annotated[str, AfterValidator(_check_host_port)]
DashboardUrl = Annotated[str, AfterValidator(_check_dashboard)]
HomeDir = Annotated[str, AfterValidator(_check_home)]


class Tls(Strict):
    """How an https dashboard is verified: by a file of certificates (``ca``), or not at all (``verify: false``)."""

    ca: str | None = None
    verify: bool = True


class ClusterConfig(Strict):
    """The configuration of one cluster. At least one of ``head_address`` and ``dashboard`` is required."""

    name: str
    """Its name; letters, digits, ``_``, ``-`` and ``.``."""
    head_address: HostPort | None = None
    """Ray Client, ``host:port``."""
    dashboard: DashboardUrl | None = None
    """The Jobs API, used exactly as written."""
    prefer: bool = False
    """Its load score counts 1.2 times."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The value of a free CPU there, such as its relative speed."""
    tags: tuple[str, ...] = ()
    """What items can prefer (``tags``) or require (``require_tags``)."""
    home_dir: HomeDir | None = None
    """Paths below the home directory of the submitter, or of another cluster, are converted to paths below this one."""
    python: Annotated[str, Field(min_length=1)] = "python"
    """The Python interpreter in the cluster that has ray, for our agent."""
    runtime_env: Annotated[dict[str, Any], BeforeValidator(normalise_runtime_env)] = Field(default_factory=dict)
    """Ray's runtime_env for everything that runs there; the runtime_env of an item is merged over it."""
    auth_token: SecretStr | None = None
    """The cluster's token; ``${NAME}`` is read from the environment when used, and never stored."""
    auth_token_path: str | None = None
    """A file that holds the token, instead of ``auth_token``."""
    tls: Tls = Tls()
    """How an https dashboard is verified."""
    max_running_jobs: Annotated[int, Field(ge=1)] = 20
    """Limit of our Ray jobs: each takes 60 to 100 MB on the head node."""
    max_in_flight: Annotated[int, Field(ge=1)] = 1000
    """Limit of our items."""
    carrier: Literal["auto", "agent", "dial_in", "ray_client"] = "auto"
    """How tasks reach it: by an agent that dials back, by one that listens and is dialled, or by Ray Client."""
    agent_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The port on which a dialled agent listens; 0 is any free port."""
    agent_address: HostPort | None = None
    """The address to dial, ``host:port``, if it differs from the address of its machine."""
    connector_python: Annotated[str, Field(min_length=1)] | None = None
    """A Python on this machine that has the cluster's version of Ray, for its connector (Ray Client)."""
    autoscaling: bool = False
    """It can grow, so it gets work even without free resources."""
    max_node: dict[str, float] | None = None
    """The largest node that may still appear, ``{CPU: , GPU: , memory: }``."""

    @field_validator("name")
    @classmethod
    def _name_is_usable(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            rule = "begin with a letter or a digit, then use letters, digits, '_', '-' and '.'; at most 63"
            raise ValueError(f"{value!r} is not a valid name of a cluster: {rule}")
        return value

    @field_validator("tags", mode="before")
    @classmethod
    def _tags_are_a_list(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"expected a list, for example [{value}]")
        return value

    @field_validator("max_node", mode="before")
    @classmethod
    def _max_node_is_resources(cls, value: object) -> dict[str, float] | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ValueError("expected a mapping such as {CPU: 16, memory: 64GiB}")
        try:
            return parse_resources(value, what="max_node")
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.head_address is None and self.dashboard is None:
            raise ValueError("has neither head_address nor dashboard; at least one of them is needed")
        if self.carrier == "ray_client" and self.head_address is None:
            raise ValueError("has carrier: ray_client, which needs head_address (host:port of its Ray Client)")
        if self.carrier in ("agent", "dial_in") and self.dashboard is None:
            raise ValueError(f"has carrier: {self.carrier}, which needs dashboard")
        if self.auth_token is not None and self.auth_token_path is not None:
            raise ValueError("has both auth_token and auth_token_path; keep one of them")
        return self

    @field_serializer("auth_token", when_used="unless-none")
    def _hide_literal_tokens(self, value: SecretStr) -> str:
        """A reference such as ``${NAME}`` is not a secret, and survives a round trip."""
        text = value.get_secret_value()
        return text if _VARIABLE.fullmatch(text) else str(value)

    def metadata(self) -> ClusterMetadata:
        """The part that placement needs, without secrets."""
        fields = self.model_dump(exclude=_NOT_FOR_PLACEMENT)
        return ClusterMetadata.from_dict(fields)

    def reached_like(self, other: ClusterConfig) -> bool:
        """Whether both are reached in the same way by the same agent, so that a link to the other can be reused."""
        return all(getattr(self, key) == getattr(other, key) for key in _CONNECTION_FIELDS)

    def resolve_token(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """The current token; resolve it at each use and do not keep it. Raises ConfigurationError."""
        if self.auth_token_path is not None:
            return self._token_from_file(Path(self.auth_token_path).expanduser())
        if self.auth_token is None:
            return None
        return _VARIABLE.sub(lambda match: self._variable(match.group(1), environ), self.auth_token.get_secret_value())

    def _variable(self, name: str, environ: Mapping[str, str]) -> str:
        if not environ.get(name):
            raise ConfigurationError(
                f"auth_token of cluster {self.name} refers to the environment variable {name}, which is not set.",
                cluster=self.name,
                next_step=f"set {name} to the cluster's token, or change auth_token",
            )
        return environ[name]

    def _token_from_file(self, path: Path) -> str:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigurationError(
                f"auth_token_path of cluster {self.name} is {path}, which cannot be read: {reason}.",
                cluster=self.name,
                next_step="give the path of a file that holds the cluster's token",
            ) from None
        if not token:
            raise ConfigurationError(
                f"auth_token_path of cluster {self.name} is {path}, which is empty.",
                cluster=self.name,
                next_step="write the cluster's token into it",
            )
        return token
