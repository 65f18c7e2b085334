"""The deployment files are accepted by the tools that read them, pinned, closed, and name only what there is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import environment_variables

import tuneyard
from tuneyard.settings import VARIABLES

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "infra/docker/Dockerfile").read_text().replace("\\\n", "")
COMPOSE = ROOT / "infra/compose/compose.yaml"
PLAN: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, Any] = PLAN["services"]
BIN = Path(sys.executable).parent
OTHERS = {
    # libpq's
    "PGPASSFILE",
    # of the image of PostgreSQL
    "POSTGRES_DB",
    "POSTGRES_PASSWORD_FILE",
    "POSTGRES_USER",
    # Ray's, the first one ours as well
    "RAY_AUTH_TOKEN_PATH",
    "RAY_AUTH_MODE",
    "RAY_JOB_STOP_WAIT_TIME_S",
    "RAY_USAGE_STATS_ENABLED",
}


def test_hadolint_accepts_the_dockerfile() -> None:
    found = subprocess.run([BIN / "hadolint", ROOT / "infra/docker/Dockerfile"], capture_output=True, text=True)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_compose_accepts_its_files(tmp_path: Path) -> None:
    files = [str(path) for path in (ROOT / "infra/compose").glob("*.yaml")]
    assert len(files) == 2
    schema = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    accepted = subprocess.run([*schema, *files], capture_output=True, text=True)
    assert accepted.returncode == 0, accepted.stdout
    if _answers("docker", "compose", "version"):
        for chosen in (["--file", str(COMPOSE)], [word for file in sorted(files) for word in ("--file", file)]):
            config = subprocess.run(["docker", "compose", *chosen, "config"], capture_output=True, text=True)
            assert (config.returncode, config.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["networks", "volumes", "secrets"])
def test_what_is_declared_is_what_is_used(kind: str) -> None:
    used = {one.partition(":")[0] for service in SERVICES.values() for one in service.get(kind, ())}
    implied = {"default"} if kind == "networks" else set()
    assert {one for one in used if not one.startswith(".")} | implied == PLAN[kind].keys()


def test_each_waits_for_what_tells_its_health() -> None:
    waited_for = {
        (name, how["condition"]) for service in SERVICES.values() for name, how in service.get("depends_on", {}).items()
    }
    assert {condition for _, condition in waited_for} == {"service_healthy"}
    assert {name for name, _ in waited_for} <= {name for name, service in SERVICES.items() if "healthcheck" in service}
    assert [name for name, service in SERVICES.items() if "healthcheck" not in service] == ["dispatcher"]
    assert {service["restart"] for service in SERVICES.values()} == {"unless-stopped"}


def test_every_variable_is_a_setting() -> None:
    named = {name for service in SERVICES.values() for name in service.get("environment", {})}
    settings = {name for name, variable in VARIABLES.items() if not variable.inner}
    mlflow = {name for name in named if name.startswith("MLFLOW_") and hasattr(environment_variables, name)}
    assert named - settings - mlflow == OTHERS


def test_secrets_are_files_of_those_who_are_given_them() -> None:
    for name, service in SERVICES.items():
        values = [str(value) for value in service.get("environment", {}).values()]
        read = {Path(value).name for value in values if value.startswith("/run/secrets/")}
        assert read == set(service.get("secrets", ())), name
        assert not re.search(r"://\w+:\w+@", " ".join([*values, *map(str, service.get("command", ()))])), name
    assert {Path(secret["file"]).parent.name for secret in PLAN["secrets"].values()} == {"secrets"}
    ignored = subprocess.run(["git", "check-ignore", "-q", "infra/compose/secrets/pgpass"], cwd=ROOT)
    assert ignored.returncode in (0, 128), "secrets are never committed"  # 128: this is no clone


def test_only_pages_and_service_are_published_and_only_to_the_host() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"mlflow": ["127.0.0.1:5000:5000"], "api": ["127.0.0.1:8700:8700"]}


def test_every_image_is_pinned_and_ours_are_of_this_version_and_do_not_run_as_root() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - stages
    images = {service["image"] for service in SERVICES.values()}
    ours = {f"tuneyard-{target}:{tuneyard.__version__}" for target in ("service", "worker")}
    assert ours <= images
    assert {
        image for image in bases | images - ours if not re.fullmatch(r"\w+:\d+\.\d+(\.\d+)?-[a-z-]+", image)
    } == set()
    built = {(service["image"], service["build"]["target"]) for service in SERVICES.values() if "build" in service}
    assert built == {(image, image.partition(":")[0].removeprefix("tuneyard-")) for image in ours}
    assert {target for _, target in built} <= stages
    for target in ("service", "worker"):
        stage = re.split(rf"^FROM base AS {target}$", DOCKERFILE, flags=re.MULTILINE)[1].partition("\nFROM ")[0]
        assert re.findall(r"^USER (.+)$", stage, re.MULTILINE)[-1:] == ["$UID"], f"{target} does not run as root"
    assert (COMPOSE.parent / SERVICES["api"]["build"]["context"]).resolve() == ROOT


def test_the_images_hold_what_the_project_declares(tmp_path: Path) -> None:
    """By the very command of the Dockerfile, over what its build is given."""
    taken = set((ROOT / ".dockerignore").read_text().splitlines())
    copied = {word for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]}
    assert {f"!{name}" for name in copied} == {line for line in taken if line.startswith("!")}
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (command,) = re.findall(r"^RUN (python -c .+)$", DOCKERFILE, re.MULTILINE)
    path = {"PATH": f"{BIN}:/usr/bin:/bin"}
    subprocess.run(["sh", "-euc", command], cwd=tmp_path, env=path, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (tmp_path / "service.txt").read_text().splitlines() == project["dependencies"]
    assert (tmp_path / "worker.txt").read_text().splitlines() == project["optional-dependencies"]["train"]


def _answers(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
