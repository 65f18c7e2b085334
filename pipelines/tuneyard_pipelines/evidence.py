"""What a test score is made of, example by example, so that scores can be checked and compared later; no torch.

`test.parquet`, one row an example, in the order of the test split:

    id, length, unknown          example id, source tokens, share of source tokens not in the vocabulary
    exact_match                  1 or 0
    bleu                         [system length, reference length, 1- to 4-gram matches, 1- to 4-grams of the system]
    bleu_char                    the same by characters, of Chinese only
    chrf                         per order: [n-grams of the system, of the reference, in both]
    nll, correct, target_tokens  summed negative log-likelihood (nats), right next tokens, number of them
    prediction                   the text that was decoded

Of a language model an example is a document; exact_match, bleu, chrf and prediction are left out, and there is

    bytes                        of the document in UTF-8; not of a masked one, whose target_tokens are the masked

`evidence.json`: what was measured, how, on which data, and the digest of the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuneyard_pipelines.journal import write_atomic

SCHEMA_VERSION = 1
TABLE, SUMMARY = "test.parquet", "evidence.json"


@dataclass(frozen=True)
class Evidence:
    """The head of a table of scored examples. Values of `metrics` are those of the whole split, `model` the digest."""

    metrics: Mapping[str, float]
    examples: int
    cut_off: int
    test_fingerprint: str
    metric_signature: Mapping[str, str]
    decoding: Mapping[str, Any]
    digest: str
    model: str = ""
    schema_version: int = SCHEMA_VERSION


def write(folder: Path, rows: Mapping[str, Sequence[Any]], **head: Any) -> Evidence:
    """Write table and head below `folder`; `head` is every field of Evidence but the digest, examples and version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    table = folder / TABLE
    scratch = folder / f".{TABLE}"
    pq.write_table(pa.table(dict(rows)), scratch)
    scratch.replace(table)
    evidence = Evidence(examples=len(rows["id"]), digest=hashlib.sha256(table.read_bytes()).hexdigest(), **head)
    write_atomic(folder / SUMMARY, json.dumps(asdict(evidence), indent=1))
    return evidence


def read(folder: Path) -> Evidence | None:
    """The evidence of a folder when table and head are both there and agree."""
    try:
        evidence = Evidence(**json.loads((folder / SUMMARY).read_text()))
        return evidence if hashlib.sha256((folder / TABLE).read_bytes()).hexdigest() == evidence.digest else None
    except (OSError, ValueError, TypeError):
        return None


def signature_digest(signature: Mapping[str, str]) -> str:
    """A short name for a set of metric definitions: equal means that scores are comparable."""
    return hashlib.sha256(json.dumps(dict(sorted(signature.items()))).encode()).hexdigest()[:16]
