"""Tokens: who comes in with which, and what is kept of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneyard.accounts import ROLES, USED_MS, Accounts, Person
from tuneyard.database import Database
from tuneyard.store import Store
from tuneyard_pipelines.errors import InputError

NOW_MS = 1_800_000_000_000


@pytest.fixture
def accounts(database: Database) -> Accounts:
    return Accounts(database)


def test_a_token_lets_in_whose_it_is(accounts: Accounts) -> None:
    token, text = accounts.create("ann", "submitter", created_by="root", now_ms=NOW_MS)
    assert accounts.let_in(text, NOW_MS) == Person("ann", "submitter", token.token_id)
    assert accounts.all()[0].created_by == "root"


def test_of_a_token_only_a_digest_is_kept(accounts: Accounts, database: Database, tmp_path: Path) -> None:
    _, text = accounts.create("ann", "admin", created_by="root", now_ms=NOW_MS)
    secret = text.rpartition("_")[2].encode()
    database.close()
    assert [path for path in tmp_path.iterdir() if secret in path.read_bytes()] == []
    [event] = Store(database).events(None)
    assert (event.actor, event.what) == ("root", "token made")
    assert secret.decode() not in event.message


def test_what_is_no_good_token_lets_nobody_in(accounts: Accounts) -> None:
    _, text = accounts.create("ann", "admin", created_by="root", now_ms=NOW_MS)
    _, other = accounts.create("bob", "admin", created_by="root", now_ms=NOW_MS)
    mixed = text[:12] + other[12:]
    for wrong in (
        "",
        "ty_",
        text[:-1],
        text + "a",
        text.upper(),
        mixed,
        f"ty_{'0' * 8}{text[11:]}",
        "ty_\0",
        text + "\n",
    ):
        assert accounts.let_in(wrong, NOW_MS) is None, wrong


def test_a_token_ends_with_its_time_or_when_it_is_revoked(accounts: Accounts) -> None:
    short, text = accounts.create("ann", "viewer", created_by="root", now_ms=NOW_MS, expires_ms=NOW_MS + 10)
    assert accounts.let_in(text, NOW_MS + 9)
    assert accounts.let_in(text, NOW_MS + 10) is None
    assert short.why_not(NOW_MS + 10) == "expired"
    token, text = accounts.create("ann", "viewer", created_by="root", now_ms=NOW_MS)
    revoked = accounts.revoke(token.token_id, revoked_by="root", now_ms=NOW_MS + 1)
    assert accounts.let_in(text, NOW_MS + 2) is None
    assert revoked.why_not(NOW_MS + 2) == "revoked"
    assert accounts.revoke(token.token_id, revoked_by="root", now_ms=NOW_MS + 9) == revoked, "the first time counts"


def test_its_last_use_is_written_down_now_and_then(accounts: Accounts) -> None:
    _, text = accounts.create("ann", "viewer", created_by="root", now_ms=NOW_MS)
    seen = []
    for after_ms in (0, USED_MS - 1, USED_MS):
        accounts.let_in(text, NOW_MS + after_ms)
        seen.append(accounts.all()[0].used_ms)
    assert seen == [NOW_MS, NOW_MS, NOW_MS + USED_MS]


def test_each_role_may_what_those_before_it_may() -> None:
    for place, role in enumerate(ROLES):
        assert [Person("ann", role).may(needed) for needed in ROLES] == [number <= place for number in range(4)]


@pytest.mark.parametrize(
    ("name", "role", "expires_ms", "message"),
    [
        ("", "viewer", None, "name: found ''"),
        ("a b", "viewer", None, "name: found 'a b'; allowed: 1 to 64 letters"),
        ("x" * 65, "viewer", None, "name: found"),
        ("ann", "root", None, "role: found 'root'; allowed: viewer, submitter, promoter, admin"),
        ("ann", "viewer", NOW_MS, "expires: found a time that is over"),
    ],
)
def test_what_no_token_can_be_made_of_is_named(
    accounts: Accounts, name: str, role: str, expires_ms: int | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        accounts.create(name, role, created_by="root", now_ms=NOW_MS, expires_ms=expires_ms)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="token 'nope': there is none of this id"):
        accounts.revoke("nope", revoked_by="root", now_ms=NOW_MS)
    assert accounts.all() == []
