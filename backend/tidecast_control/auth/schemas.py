"""Users, keys, sessions: request and response shapes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from tidecast_control.kit.schemas import Count, Model, Name, ReadOnly, Role, Scope, Short, View

Password = Annotated[str, Field(min_length=10, max_length=256)]


class Login(Model):
    """The credentials of a login."""

    user: Annotated[str, Field(min_length=1, max_length=200)]
    password: Annotated[str, Field(min_length=1, max_length=256)]


class Identity(View):
    """The actor of a session, and its rights."""

    kind: Literal["user", "key"]
    name: str
    role: Role
    rights: list[str] = Field(description="Rights of the service, such as topics:write")
    scopes: list[Scope] = Field([], description="A key's rights by topic; users: by role")
    must_change_password: bool = False
    expires_at: datetime | None = None
    csrf_token: str | None = Field(None, description="To send as X-CSRF-Token with every write")


class PasswordChange(Model):
    """The user's own password."""

    old: Annotated[str, Field(max_length=256)]
    new: Password


class UserInput(Model):
    """The desired state of a user. ``password`` may be left out when the user exists."""

    role: Role = "viewer"
    password: Password | None = None
    display_name: Short = ""
    disabled: bool = False
    must_change_password: bool | None = Field(
        None, description="null = as it is; of a new user false"
    )
    name: ReadOnly = None
    created_at: ReadOnly = None
    updated_at: ReadOnly = None
    login_at: ReadOnly = None
    generation: ReadOnly = None


class User(View):
    """A user."""

    name: str
    role: Role
    display_name: str
    disabled: bool
    must_change_password: bool
    created_at: datetime
    updated_at: datetime
    login_at: datetime | None = None
    generation: Count


class KeyInput(Model):
    """An API key to make: it has the rights of its role, within its scopes.

    A key with the role admin takes no scopes: it is not limited. Without scopes another key has no
    right on any topic, and sees as much as its role.
    """

    name: Name
    role: Role = "viewer"
    scopes: list[Scope] = Field([], max_length=100)
    description: Short = ""
    expires_s: float | None = Field(None, gt=0, le=10 * 366 * 86_400, description="null = never")


class Key(View):
    """An API key, without its secret."""

    id: str
    name: str
    prefix: str = Field(description="The secret's first characters")
    role: Role
    scopes: list[Scope]
    description: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None


class KeySecret(Key):
    """Shown once."""

    secret: str


class TokenCheck(View):
    """The rights of a client's token: engines and the gateway ask this."""

    valid: bool
    name: str = ""
    role: Role | None = None
    scopes: list[Scope] = []
    expires_at: datetime | None = None


Identity.model_rebuild()
