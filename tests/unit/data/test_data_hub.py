"""Data sets of the hub: what is asked of it, what it may answer, and how a folder in its layout is read."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tuneyard_pipelines.data import DataError, count_vocabulary, hub, prepare
from tuneyard_pipelines.keys import DataSpec, Split, Tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
README = "---\nconfigs:\n- config_name: {}\n  data_files: {}\n---\n# A data set\n"


def folder(path, **files):
    for name, content in files.items():
        place = path / "set" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path / "set"


def texts(path, config=None, columns=("text",)):
    return [(row.split, *row.texts) for row in hub.rows(path, config, columns)]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"train.csv": "text\na\n"}, [(None, "a")]),
        ({"train.csv": "text\na\n", "dev.csv": "text\nb\n"}, [("train", "a"), ("validation", "b")]),
        ({"data/train-0.tsv": 'n\ttext\n1\ta "b"\n'}, [(None, 'a "b"')]),
        ({"x.csv.gz": gzip.compress(b"text\na\n")}, [(None, "a")]),
        ({"train.jsonl": '{"text": "a"}\n', "eval.jsonl": '{"text": "b"}\n'}, [("train", "a"), ("test", "b")]),
        ({"all.json": '[{"text": "a"}, {"text": null}]'}, [(None, "a"), (None, "")]),
        (
            {"train.txt": "a\n\nb\n", "valid.txt": "c\n"},
            [("train", "a"), ("train", ""), ("train", "b"), ("validation", "c")],
        ),
    ],
)
def test_splits_and_texts_follow_from_the_files(tmp_path, files, expected):
    assert texts(folder(tmp_path, **files)) == expected


def test_parquet(tmp_path):
    path = folder(tmp_path, **{"README.md": "no head\n"})
    pq.write_table(pa.table({"text": ["a", None], "label": [1, 2]}), path / "train-00000-of-00002.parquet")
    pq.write_table(pa.table({"text": ["b"], "label": [3]}), path / "train-00001-of-00002.parquet")
    assert texts(path) == [(None, "a"), (None, ""), (None, "b")]
    with pytest.raises(DataError, match=r'row 1 of train: label is "1", of type int, and no text'):
        texts(path, columns=("label",))


def test_what_stands_in_a_table_is_not_taken_for_numbers_or_for_nothing(tmp_path):
    plain = {"train.csv": "text,n\nNA,007\nnull,1.50\n,2024-03-03\n"}
    expected = [(None, "NA", "007"), (None, "null", "1.50"), (None, "", "2024-03-03")]
    assert texts(folder(tmp_path / "plain", **plain), columns=("text", "n")) == expected
    features = (
        "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: n\n    dtype: string\n---\n"
    )
    told = folder(tmp_path / "told", **plain, **{"README.md": features})
    assert texts(told, columns=("text", "n")) == expected


@pytest.mark.parametrize("readme", ["", "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n---\n"])
def test_a_date_in_json_is_refused_and_never_rewritten(tmp_path, readme):
    path = folder(tmp_path, **{"train.jsonl": '{"text": "2024-03-03"}\n', "README.md": readme})
    with pytest.raises(DataError, match=r"of type datetime, and no text.* keep it in .csv or .parquet"):
        texts(path)


def test_pairs_in_one_column(tmp_path):
    path = folder(tmp_path, **{"train.jsonl": '{"translation": {"de": "a", "en": "b"}}\n{"translation": null}\n'})
    assert hub.look(path).columns == ("translation.de", "translation.en")
    columns = ("translation.en", "translation.de")
    assert texts(path, columns=columns) == [(None, "b", "a"), (None, "", "")]
    with pytest.raises(DataError, match=r'no column "translation"; it has translation.de, translation.en'):
        texts(path, columns=("translation",))
    features = {"features": [{"name": "translation", "dtype": {"translation": {"languages": ["de", "en"]}}}]}
    pq.write_table(pa.table({"translation": [{"de": "a", "en": "b"}]}), tmp_path / "train.parquet")
    (tmp_path / "README.md").write_text(f"---\n{json.dumps({'dataset_info': features})}\n---\n")
    (path / "train.jsonl").unlink()
    (tmp_path / "train.parquet").rename(path / "train.parquet")
    (tmp_path / "README.md").rename(path / "README.md")
    assert hub.look(path).columns == ("translation.de", "translation.en")
    assert texts(path, columns=columns) == [(None, "b", "a")]


def test_translations_of_many_languages_are_not_taken_for_a_pair(tmp_path):
    many = {"translation_variable_languages": {"languages": ["de", "en"]}}
    features = {"features": [{"name": "translation", "dtype": many}]}
    path = folder(tmp_path, **{"README.md": f"---\n{json.dumps({'dataset_info': features})}\n---\n"})
    row = {"language": ["de", "de", "en"], "translation": ["a", "b", "c"]}
    pq.write_table(pa.table({"translation": [row]}), path / "train.parquet")
    with pytest.raises(DataError, match=r"no column .translation.de.; it has translation"):
        texts(path, columns=("translation.de",))
    with pytest.raises(DataError, match=r"row 1 of train: translation is .* of type dict, and no text"):
        texts(path, columns=("translation",))


CONFIGS = """---
configs:
- config_name: small
  data_files: small.csv
- config_name: large
  data_files:
  - split: train
    path: large.csv
  - split: dev
    path: small.csv
  - split: unsupervised
    path: large.csv
---
"""
CONFIGURED = {"README.md": CONFIGS, "small.csv": "text\ns\n", "large.csv": "text\nl\n"}


def test_configs(tmp_path):
    path = folder(tmp_path, **CONFIGURED)
    assert texts(path, "small") == [(None, "s")]
    assert texts(path, "large") == [("train", "l"), ("validation", "s")]
    layout = hub.look(path, "large")
    assert layout.configs == ("small", "large")
    assert layout.splits == {"train": "train", "dev": "validation", "unsupervised": None}
    with pytest.raises(DataError, match=r"data.config: .* has several and no default; name one of small, large"):
        hub.look(path)
    with pytest.raises(DataError, match=r'data.config: .* has no config "huge"; it has small, large'):
        texts(path, "huge")
    (path / "README.md").write_text(CONFIGS.replace("small\n", "default\n", 1))
    assert texts(path) == [(None, "s")]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"README.md": "# hello\n"}, "cannot be read as a data set .*doesn't contain any data files"),
        ({"train.csv": "a,b\n1,2\n"}, 'data.columns: .* has no column "text"; it has a, b'),
        ({"train.csv": "text,b\n1,2,3\n"}, "rows with more fields than the header"),
        ({"train.csv": "text\ncaf\u00e9\n".encode("latin-1")}, "cannot be read as a data set .UnicodeDecodeError"),
        ({"train.csv.gz": gzip.compress(b"text\n" + b"abc\n" * 99)[:-9]}, "cannot be read as a data set .EOFError"),
        ({"train.jsonl": '{"text": "a"}\n{"text": 5\n'}, "cannot be read as a data set"),
        ({"train.jsonl": '{"text": "a"}\n{"text": 5}\n'}, 'row 2 of train: text is "5", of type int'),
        ({"train.xml": "<text/>"}, r"train.xml: no file of texts; of a data set, .csv .tsv .jsonl .json .parquet .txt"),
        ({"README.md": "---\nconfigs: [\n---\n", "a.csv": "text\n"}, "cannot be read as a data set .ParserError"),
        ({"README.md": README.format("a", "/etc/passwd")}, 'names the data file "/etc/passwd", which lies elsewhere'),
        ({"README.md": README.format("a", "../x.csv")}, 'names the data file "../x.csv", which lies elsewhere'),
        ({"README.md": README.format("a", "https://127.0.0.1:9/x.csv")}, 'names the data file "https:.* elsewhere'),
        (
            {"README.md": README.format("a", "'*.csv'\n  data_dir: ../..")},
            r'names the data file "\.\./\.\.", which lies',
        ),
        (
            {".huggingface.yaml": "configs: [{config_name: a, data_files: /etc/x.csv}]"},
            'names the data file "/etc/x.csv"',
        ),
        (
            {"README.md": CONFIGS.replace("split: train", "split: big"), **dict([*CONFIGURED.items()][1:])},
            "no split to train on; there is big, dev, unsupervised: call one of them train",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, files, message):
    path = folder(tmp_path, **files)
    with pytest.raises(DataError, match=message):
        texts(path, "large" if "unsupervised" in files.get("README.md", "") else None)


def test_the_digest_follows_names_and_content_of_what_is_read(tmp_path):
    path = folder(tmp_path, **{"train.csv": "text\na\n", "b/test.txt.gz": b"x", "README.md": "", "loader.py": "no"})
    digests = [hub.identity(path)]
    (path / "loader.py").write_text("other")
    assert hub.identity(path.rename(tmp_path / "moved")) == digests[0]
    path = tmp_path / "moved"
    for name, text in {"train.csv": "text\nb\n", "README.md": "---\n", "b/more.parquet": ""}.items():
        (path / name).write_text(text)
        digests.append(hub.identity(path))
    (path / "train.csv").rename(path / "dev.csv")
    assert len({*digests, hub.identity(path)}) == 5


def test_no_folder(tmp_path):
    with pytest.raises(DataError, match="gone: no such folder"):
        hub.look(tmp_path / "gone")


def test_no_code_of_a_data_set_runs(tmp_path):
    code = f"open({str(tmp_path / 'ran')!r}, 'w').write('owned')\n"
    files = {"train.csv": "text\na\n", "loader.py": code, "setup.py": code, "__init__.py": code, "set2.py": code}
    path = folder(tmp_path, **files)
    assert texts(path) == [(None, "a")]
    (path / "set.py").write_text(code)
    with pytest.raises(DataError, match=r"set.py: the code of a data set is not run; put its data files into a folder"):
        texts(path)
    assert not (tmp_path / "ran").exists()


def test_splits_that_are_given_are_kept_and_the_others_are_made(tmp_path):
    train = "source,target,author\n" + "".join(f"s{n},t{n},{'ab'[n % 2]}\n" for n in range(60)) + "gap,,a\n"
    path = folder(tmp_path, **{"train.csv": train, "test.csv": "source,target,author\nx,y,c\nz,w,c\n"})
    data = DataSpec(source=str(path))
    prepared = prepare(data, 1, tmp_path / "cache")
    assert prepared.examples == {"train": 57, "validation": 3, "test": 2}
    assert prepared.split("test")["source"][:] == ["x", "z"]
    assert prepared.version == hub.identity(path)
    [finding] = prepared.findings
    assert (finding.what, finding.fate, finding.count) == ("pairs with an empty side", "left out", 1)
    assert finding.first == f"{path}: row 61 of train"
    assert prepare(data, 1, tmp_path / "cache").folder == prepared.folder
    (path / "test.csv").rename(path / "dev.csv")
    again = prepare(data, 1, tmp_path / "cache")
    assert again.folder != prepared.folder
    assert again.examples == {"train": 57, "validation": 2, "test": 3}
    by_author = data.model_copy(update={"split": Split(test=30, group_by=("author",))})
    alone = prepare(by_author, 1, tmp_path / "cache")
    assert alone.examples == {"train": 30, "validation": 2, "test": 30}
    assert count_vocabulary(data, Tokenizer(), tmp_path / "new", seed=1)[0].target == 4 + len("st0123456789xyzw")


def test_a_folder_without_splits_is_parted_as_a_file_is(tmp_path):
    path = folder(tmp_path, **{"poems.txt": "".join(f"poem {n:03}\n" for n in range(200))})
    data = DataSpec(source=f"{path}/", split=Split(validation=5, test=5))
    prepared = prepare(data, 1, tmp_path / "cache", "language_modeling")
    assert prepared.examples == {"train": 190, "validation": 5, "test": 5}


FILES = {
    "README.md": b"---\nlicense: mit\n---\n# Poems\n",
    "poems.py": b"raise SystemExit('run')\n",
    "data/train.csv": b"text\nroses\nviolets\n",
    "data/test.csv.gz": gzip.compress(b"text\nblue\n"),
    "picture.png": b"png",
}


class Hub(http.server.BaseHTTPRequestHandler):
    """So much of the hub's HTTP as a download takes; `status` and `code` are answered to everything while set."""

    status, code, asked = 0, "", []

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.partition("?")[0]
        type(self).asked.append(f"{self.command} {path}")
        if self.status:
            return self._say(self.status, b"{}", **({"X-Error-Code": self.code} if self.code else {}))
        if path.startswith("/api/datasets/jo/poems/revision/"):
            return self._say(200, json.dumps({"id": "jo/poems", "sha": COMMIT}).encode())
        if path == f"/api/datasets/jo/poems/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in FILES.items()
            ]
            return self._say(200, json.dumps(tree).encode())
        name = path.removeprefix(f"/datasets/jo/poems/resolve/{COMMIT}/")
        if name not in FILES:
            return self._say(404, b"{}")
        etag = hashlib.sha1(FILES[name]).hexdigest()
        return self._say(200, FILES[name], **{"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _say(self, status, body, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        Hub.status, Hub.code, Hub.asked = 0, "", []
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


SCRIPT = """
import sys, pathlib
from tuneyard_pipelines.data import hub
from tuneyard_pipelines.errors import TuneyardError
try:
    found = hub.fetch(sys.argv[1], sys.argv[2], pathlib.Path("cache"))
    print(found.name, sorted(str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()))
    if sys.argv[3:]:
        print([(row.split, *row.texts) for row in hub.rows(found, None, ("text",))])
except TuneyardError as error:
    print(type(error).__name__, error)
"""


def fetched(tmp_path, endpoint, *rows, revision="main", script=SCRIPT, **more):
    """What a fresh process says, which reads its environment anew, and that it says nothing else."""
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path / "home"), "HF_ENDPOINT": endpoint, **more}
    environment |= {"no_proxy": "*", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", script, "jo/poems", revision, *rows]
    answer = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert answer.stderr == ""
    return answer.stdout


def test_fetches_data_files_only_and_each_once(tmp_path, endpoint):
    said = fetched(tmp_path, endpoint, "rows").splitlines()
    assert said[0] == f"{COMMIT} ['README.md', 'data/test.csv.gz', 'data/train.csv']"
    assert said[1] == "[('train', 'roses'), ('train', 'violets'), ('test', 'blue')]"
    assert not [line for line in Hub.asked if ".py" in line or ".png" in line]
    assert not (tmp_path / "home").exists()
    Hub.asked = []
    assert fetched(tmp_path, endpoint, "rows", revision=COMMIT).splitlines() == said
    assert Hub.asked == []


PREPARES = """
import pathlib
from tuneyard_pipelines.data import encode, prepare
from tuneyard_pipelines.keys import DataSpec, Tokenizer
prepared = prepare(DataSpec(source="builtin/copy", examples=200), 1, pathlib.Path("cache"))
print(encode(prepared, Tokenizer()).sizes.target)
"""


def test_data_of_this_machine_is_prepared_without_the_hub(tmp_path, endpoint):
    """Though nothing forbids the libraries to ask it."""
    assert fetched(tmp_path, endpoint, script=PREPARES) == "20\n"
    assert Hub.asked == []


SWEEPS = """
import pathlib
from tuneyard_pipelines.data import count_vocabulary, pinned, prepare
from tuneyard_pipelines.keys import DataSpec, Split, Tokenizer
data = pinned(DataSpec(source="hub/jo/poems", split=Split(validation=1)))
prepared = prepare(data, 1, pathlib.Path("cache"), "language_modeling")
print(data.revision, data.source, prepared.version, prepared.source, prepared.examples)
again = prepare(data, 1, pathlib.Path("other"), "language_modeling")
print(again.fingerprint == prepared.fingerprint)
sizes, exact = count_vocabulary(data, Tokenizer(), pathlib.Path("third"), seed=1, task="language_modeling")
print(sizes.target, exact)
"""


def test_a_sweep_keeps_the_commit_of_its_data(tmp_path, endpoint):
    said = fetched(tmp_path, endpoint, script=SWEEPS).splitlines()
    characters = 4 + len(set("rosesvioletsblue"))
    examples = "{'train': 1, 'validation': 1, 'test': 1}"
    assert said == [f"{COMMIT} hub/jo/poems {COMMIT} hub/jo/poems {examples}", "True", f"{characters} False"]
    assert len([line for line in Hub.asked if "/revision/" in line]) == 1
    assert (tmp_path / "cache" / "hub" / "datasets--jo--poems").is_dir()


def test_a_commit_that_is_kept_needs_no_hub_and_a_branch_does(tmp_path, endpoint):
    said = fetched(tmp_path, endpoint)
    Hub.status = 503
    assert fetched(tmp_path, endpoint, revision=COMMIT) == said
    assert fetched(tmp_path, endpoint, revision=COMMIT, HF_HUB_OFFLINE="1") == said
    assert fetched(tmp_path, "http://127.0.0.1:9", revision=COMMIT) == said
    branch = fetched(tmp_path, "http://127.0.0.1:9")
    assert branch.startswith("UnreachableError hub/jo/poems at http://127.0.0.1:9: no answer (ConnectError: ")
    assert branch.endswith(f" To use what was fetched before, set data.revision: {COMMIT}.\n")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "DataError hub/jo/poems at {}: no such data set, or a private one. Look at its name and"),
        (
            401,
            "",
            "DataError hub/jo/poems at {}: no such data set, or a private one. Look at its name and at HF_TOKEN",
        ),
        (404, "RevisionNotFound", 'DataError data.revision: hub/jo/poems at {} has no revision "main"; give a branch,'),
        (403, "GatedRepo", "DataError hub/jo/poems at {}: its owner must let you in first: ask on its page, then set"),
        (403, "", "DataError hub/jo/poems at {}: not allowed ("),
        (500, "", "UnreachableError hub/jo/poems at {}: no answer (HfHubHTTPError: Server error '500 Internal Server"),
    ],
)
def test_what_the_hub_refuses(tmp_path, endpoint, status, code, message):
    Hub.status, Hub.code = status, code
    assert fetched(tmp_path, endpoint).startswith(message.format(endpoint))


@pytest.mark.parametrize(
    ("endpoint", "more", "message"),
    [
        ("http://127.0.0.1:9", {}, "no answer (ConnectError: "),
        ("http://127.0.0.1:9", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set, so it is not asked. Unset it."),
    ],
)
def test_a_hub_that_cannot_be_reached(tmp_path, endpoint, more, message):
    assert fetched(tmp_path, endpoint, **more).startswith(f"UnreachableError hub/jo/poems at {endpoint}: {message}")
