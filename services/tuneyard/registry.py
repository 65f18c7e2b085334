"""Registered models and their versions, read from MLflow's registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneyard.settings import without_passwords
from tuneyard_pipelines import tracking
from tuneyard_pipelines.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CANDIDATE = "candidate"


@dataclass(frozen=True)
class Version:
    """One version of a registered model. `tags` are Tuneyard's own, without their prefix."""

    name: str
    version: int
    aliases: tuple[str, ...]
    created_ms: int
    run_id: str
    source: str
    description: str
    tags: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "aliases": list(self.aliases), "tags": dict(self.tags)}


def list_models(client: MlflowClient) -> list[Version]:
    """Every version of every registered model, by name, newest first."""
    found: list[Version] = []
    token = None
    while True:
        page = client.search_registered_models(page_token=token)
        for model in page:
            found += versions(client, model.name)
        token = page.token
        if not token:
            return sorted(found, key=lambda v: (v.name, -v.version))


def versions(client: MlflowClient, name: str) -> list[Version]:
    """All versions of one registered model, newest first."""
    aliases = dict(client.get_registered_model(name).aliases)
    found: list[Version] = []
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", page_token=token)
        found += [_version(version, aliases) for version in page]
        token = page.token
        if not token:
            return sorted(found, key=lambda v: -v.version)


def exists(uri: str) -> bool:
    """False for an SQLite file that is not there: MLflow would make it, and a read makes nothing."""
    scheme, _, place = uri.partition(":///")
    file = place.partition("?")[0]
    return not (scheme.startswith("sqlite") and file) or Path(file).exists()


def nothing_in(uri: str) -> str:
    return f"no registered models in {without_passwords(uri)}; a sweep with `register: {{name: ...}}` makes one"


def look_up(uri: str, model: str) -> Version:
    """As `find`, in the registry at `uri`. Raises UnreachableError when it does not answer."""
    if not exists(uri):
        raise InputError(f"{model}: {nothing_in(uri)}")
    return find(tracking.connect(uri), model)


def find(client: MlflowClient, model: str) -> Version:
    """`NAME` (its candidate), `NAME@ALIAS` or `NAME/VERSION`. Raises InputError, naming what there is."""
    from mlflow.exceptions import MlflowException

    name, alias, number = _parse(model)
    try:
        present = versions(client, name)
    except MlflowException as cause:
        names = sorted(registered.name for registered in client.search_registered_models())
        raise InputError(f"{model}: no registered model {name!r}; there are: {', '.join(names) or 'none'}") from cause
    for version in present:
        if version.version == number or alias in version.aliases:
            return version
    known = [str(version.version) for version in present]
    aliases = sorted({alias for version in present for alias in version.aliases})
    wanted = f"version {number}" if number is not None else f"alias {alias!r}"
    there = f"versions: {', '.join(known) or 'none'}; aliases: {', '.join(aliases) or 'none'}"
    raise InputError(f"{model}: {name} has no {wanted}; {there}")


def _parse(model: str) -> tuple[str, str | None, int | None]:
    name, at, alias = model.partition("@")
    if at:
        return name, alias, None
    name, slash, number = model.rpartition("/")
    if slash and number.isdecimal():
        return name, None, int(number)
    return model, CANDIDATE, None


def _version(version: ModelVersion, aliases: Mapping[str, str]) -> Version:
    own = {key.removeprefix("tuneyard."): value for key, value in version.tags.items() if key.startswith("tuneyard.")}
    return Version(
        name=version.name,
        version=int(version.version),
        aliases=tuple(sorted(alias for alias, number in aliases.items() if int(number) == int(version.version))),
        created_ms=version.creation_timestamp,
        run_id=version.run_id or "",
        source=version.source or "",
        description=version.description or "",
        tags=own,
    )
