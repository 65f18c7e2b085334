"""Where state lives, and which MLflow is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneyard import dispatcher, platform, settings
from tuneyard.api.service import Service
from tuneyard_pipelines.errors import InputError


def test_the_home_is_the_nearest_one_above(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b" / "c"
    below.mkdir(parents=True)
    (tmp_path / ".tuneyard").mkdir()
    assert settings.find_home({}, below) == tmp_path / ".tuneyard"
    (tmp_path / "a" / "b" / ".tuneyard").mkdir()
    assert settings.find_home({}, below) == tmp_path / "a" / "b" / ".tuneyard"


def test_a_file_of_that_name_is_no_home(tmp_path: Path) -> None:
    (tmp_path / ".tuneyard").mkdir()
    below = tmp_path / "a"
    below.mkdir()
    (below / ".tuneyard").touch()
    assert settings.find_home({}, below) == tmp_path / ".tuneyard"


def test_without_any_the_home_will_be_here(tmp_path: Path) -> None:
    assert settings.find_home({}, tmp_path) == tmp_path / ".tuneyard"
    assert list(tmp_path.iterdir()) == []


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".tuneyard").mkdir()
    assert settings.find_home({"TUNEYARD_HOME": str(tmp_path / "x")}, tmp_path) == tmp_path / "x"
    monkeypatch.chdir(tmp_path)
    assert settings.find_home({"TUNEYARD_HOME": "y"}) == tmp_path / "y"
    assert settings.find_home({"TUNEYARD_HOME": ""}) == tmp_path / ".tuneyard"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.find_home({"TUNEYARD_HOME": "~/z"}) == tmp_path / "z"


def test_a_home_keeps_itself_out_of_git(tmp_path: Path) -> None:
    home = tmp_path / "a" / "b"
    settings.make_home(home)
    assert {path.name: path.read_text() for path in home.iterdir()} == {".gitignore": "*\n"}
    (home / ".gitignore").write_text("mine")
    settings.make_home(home)
    assert (home / ".gitignore").read_text() == "mine"


def test_a_home_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "home", Path("/proc/nowhere")):
        with pytest.raises(InputError, match=f"{home}: state cannot be written here .*TUNEYARD_HOME"):
            settings.make_home(home)


def test_mlflow_is_named_by_option_environment_or_home(tmp_path: Path) -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://host:5000"}
    assert settings.tracking_uri(tmp_path, "https://other", environment) == "https://other"
    assert settings.tracking_uri(tmp_path, None, environment) == "http://host:5000"
    assert settings.tracking_uri(tmp_path, None, {}) == f"sqlite:///{tmp_path}/mlflow.db"
    assert settings.tracking_uri(tmp_path, None, {"MLFLOW_TRACKING_URI": ""}) == f"sqlite:///{tmp_path}/mlflow.db"
    for uri in ("postgresql+psycopg2://u@h/db", "sqlite:////tmp/x.db", "databricks"):
        assert settings.tracking_uri(tmp_path, uri, {}) == uri


@pytest.mark.parametrize("uri", ["mlruns", "/tmp/mlruns", "file:///tmp/mlruns", "/tmp/a+b/mlruns", "a+b", "ftp://host"])
def test_what_is_no_tracking_server_is_refused_by_its_place(tmp_path: Path, uri: str) -> None:
    with pytest.raises(InputError, match=r"--mlflow: .* is not a tracking server"):
        settings.tracking_uri(tmp_path, uri, {})
    with pytest.raises(InputError, match=r"MLFLOW_TRACKING_URI: .* is not a tracking server"):
        settings.tracking_uri(tmp_path, None, {"MLFLOW_TRACKING_URI": uri})


def test_the_queues_tracking_server_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    settings.keep_tracking_uri(tmp_path, "postgresql://u:secret@host/mlflow")
    settings.keep_tracking_uri(tmp_path, "http://127.0.0.1:5000")
    assert settings.tracking_uri(tmp_path, None, {}) == "http://127.0.0.1:5000"
    assert settings.tracking_uri(tmp_path, None, {"MLFLOW_TRACKING_URI": "http://other:1"}) == "http://other:1"
    assert (tmp_path / settings.TRACKING).stat().st_mode & 0o777 == 0o600


def test_a_dispatcher_passes_no_password_on(tmp_path: Path) -> None:
    uri = "postgresql://u:secret@host/mlflow"
    _, _, how = dispatcher.configured({"TUNEYARD_HOME": str(tmp_path), "MLFLOW_TRACKING_URI": uri})
    assert "secret" not in str(how)
    assert settings.tracking_uri(tmp_path, None, {}) == uri


def test_a_variable_that_is_not_there_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"TUNEYARD_HOME": str(tmp_path / "home")}
    slip = {**home, "TUNEYARD_TRUSTED_PROXY": "10.0.0.7"}
    monkeypatch.setenv("TUNEYARD_TRUSTED_PROXY", "10.0.0.7")
    for start in (
        lambda: Service.configured(slip),
        lambda: dispatcher.configured(slip),
        lambda: platform.run(tmp_path / "home", platform.Ports(), print),
        lambda: platform.detach(tmp_path / "home", platform.Ports(), print),
    ):
        with pytest.raises(InputError, match=r"TUNEYARD_TRUSTED_PROXY: .* did you mean TUNEYARD_TRUSTED_PROXIES"):
            start()
    assert not (tmp_path / "home").exists()
    with pytest.raises(InputError, match="TUNEYARD_XYZZY: there is no such setting; correct it"):
        settings.check_names({"TUNEYARD_XYZZY": ""})
    settings.check_names({**dict.fromkeys(settings.VARIABLES, "x"), "OTHERS_TUNEYARD_X": "y"})


def test_what_is_set_to_nothing_has_its_default() -> None:
    assert settings.value("TUNEYARD_DRIVER", {"TUNEYARD_DRIVER": ""}) == "tuneyard"
    assert settings.whole("TUNEYARD_MAX_DRIVERS", {}) == 8
    assert settings.whole("TUNEYARD_MAX_DRIVERS", {"TUNEYARD_MAX_DRIVERS": "0"}) == 0


@pytest.mark.parametrize(
    "name",
    ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8700_TCP", "PORT_8700_TCP_ADDR", "API_PORT"],
)
def test_what_kubernetes_tells_of_a_service_of_our_name_is_no_slip(name: str) -> None:
    settings.check_names({f"TUNEYARD_{name}": "tcp://10.0.0.1:8700"})
