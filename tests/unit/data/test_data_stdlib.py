"""builtin/stdlib: the sources of this Python without its tests, in one order, whatever else lies beside them."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tuneyard_pipelines.data import DataError, stdlib


@pytest.fixture
def tree(tmp_path):
    files = {
        "zlib_ng.py": "zlib = 1\n",
        "email/__init__.py": "\n\n",
        "email/message.py": "\n  # text\r\nx = 1\n\n",
        "email/mime/base.py": "base = 1",
        "email/tests/test_message.py": "no",
        "test/support.py": "no",
        "idlelib/idle_test/a.py": "no",
        "site-packages/numpy/core.py": "no",
        "dist-packages/apt.py": "no",
        "config-3.11/python-config.py": "no",
        "__pycache__/x.txt": "no",
        "_sysconfigdata__linux_.py": "no",
        "latin.py": "# caf\u00e9".encode("latin-1"),
        "README.txt": "no",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path


def test_modules_in_order_without_tests_and_packages_of_others(tree):
    found = stdlib.read(tree)
    assert list(zip(found.modules, found.texts, strict=True)) == [
        ("email", "  # text\nx = 1"),
        ("email", "base = 1"),
        ("zlib_ng", "zlib = 1"),
    ]
    assert found.left_out == 2  # an empty file and one that is not UTF-8


def test_the_digest_follows_names_and_content_of_what_is_taken(tree):
    before = stdlib.sha256(tree)
    (tree / "site-packages" / "new.py").write_text("x")
    assert stdlib.sha256(tree) == before
    (tree / "email" / "message.py").write_text("x = 2")
    changed = stdlib.sha256(tree)
    (tree / "zlib_ng.py").rename(tree / "zlib.py")
    assert len({before, changed, stdlib.sha256(tree)}) == 3


def test_no_sources(tmp_path):
    with pytest.raises(DataError, match="builtin/stdlib: no Python source in"):
        stdlib.read(tmp_path)


def test_this_python():
    found = stdlib.read()
    assert sum(map(len, found.texts)) > 5_000_000
    assert {"json", "asyncio", "argparse"} <= set(found.modules)
    assert "test" not in found.modules
    assert found.left_out < 20
    assert stdlib.VERSION.endswith(f"cpython-{platform.python_version()}")


def test_the_same_in_another_process():
    script = "from tuneyard_pipelines.data import stdlib; found = stdlib.read(); print(found.modules, stdlib.sha256())"
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "99"}
    answer = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == f"{stdlib.read().modules} {stdlib.sha256()}"
