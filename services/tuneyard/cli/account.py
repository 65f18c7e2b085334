"""`tuneyard login | logout | whoami | token`: which service the commands speak to, as whom, and who else may."""

from __future__ import annotations

import getpass
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard import settings
from tuneyard.cli.output import Json, ago, table, when
from tuneyard.cli.service import the_client
from tuneyard_pipelines.errors import InputError

if TYPE_CHECKING:
    from tuneyard.accounts import Role
    from tuneyard.pages import Made

DAY_MS = 86_400_000

app = typer.Typer(help="Make, list and revoke the tokens of a service.", no_args_is_help=True, rich_markup_mode=None)


def login(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of a service, as in https://tuneyard.example.org.")],
) -> None:
    """Have the commands that follow speak to this service; the token is asked for, or read from stdin."""
    from tuneyard import logins
    from tuneyard.client import Client

    token = typer.prompt("token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    client = Client(url, token.strip())
    person = client.whoami()
    logins.keep(logins.user_folder(), logins.Login(client.url, token.strip()))
    print(f"{client.url}: logged in as {person.name}, {person.role}")
    used = logins.find(settings.find_home())
    if used is not None and used.url != client.url:
        print(f"note: here {used.url} is used, by {used.kept}", file=sys.stderr)


def logout() -> None:
    """Forget the service and the token of the last login; the token itself goes on until it is revoked."""
    from tuneyard import logins

    print("logged out" if logins.drop(logins.user_folder()) else "nobody was logged in")


def whoami(as_json: Json = False) -> None:
    """Which service is spoken to, and as whom."""
    client = the_client()
    person = client.whoami()
    if as_json:
        print(json.dumps({"service": client.url, **asdict(person)}))
    else:
        print(f"{person.name}, {person.role}, at {client.url}")


@app.command("create")
def create_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose token it is to be.")],
    role: Annotated[str, typer.Option("--role", help="viewer, submitter, promoter or admin.")] = "submitter",
    days: Annotated[
        int | None, typer.Option("--days", min=1, max=3650, help="It lives so long; otherwise until it is revoked.")
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="In the home's database itself, as whoever runs the service may.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a token, and print its text, this once."""
    from tuneyard.accounts import ROLES

    known = next((one for one in ROLES if one == role), None)
    if known is None:
        raise InputError(f"--role {role}: allowed: {', '.join(ROLES)}")
    expires_ms = None if days is None else int(time.time() * 1000) + days * DAY_MS
    create = _create_here if here else the_client().create_token
    made = create(name, known, expires_ms=expires_ms)
    if as_json:
        print(json.dumps({**asdict(made.token), "secret": made.secret}))
        return
    until = f", until {when(made.token.expires_ms)}" if made.token.expires_ms else ""
    print(f"token {made.token.token_id} of {name}, {role}{until}; its text is not shown again:", file=sys.stderr)
    print(made.secret)


def _create_here(name: str, role: Role, *, expires_ms: int | None) -> Made:
    from tuneyard.accounts import Accounts
    from tuneyard.database import Database
    from tuneyard.pages import Made

    home = settings.find_home()
    settings.make_home(home)
    database = Database(settings.database_url(home))
    database.migrate()
    now_ms = int(time.time() * 1000)
    made = Accounts(database).create(name, role, created_by=getpass.getuser(), now_ms=now_ms, expires_ms=expires_ms)
    database.close()
    return Made(*made)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """The tokens there are, and those that were revoked."""
    tokens = the_client().tokens()
    if as_json:
        print(json.dumps([asdict(token) for token in tokens]))
        return
    now_ms = int(time.time() * 1000)
    rows = [
        (
            token.token_id,
            token.name,
            token.role,
            token.why_not(now_ms) or ("good" if token.expires_ms is None else f"until {when(token.expires_ms)}"),
            "never" if token.used_ms is None else ago(token.used_ms),
            f"{ago(token.created_ms)} by {token.created_by}",
        )
        for token in tokens
    ]
    table(("id", "name", "role", "state", "last used", "made"), rows)


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(metavar="ID", help="A token's id.")]) -> None:
    """Let nobody in with it from now on."""
    token = the_client().revoke_token(token_id)
    print(f"token {token.token_id} of {token.name} is revoked")
