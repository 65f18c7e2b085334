"""Real text, where a folder `shared/data` lies beside the repository; tests of it are skipped elsewhere."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TATOEBA = SHARED / "tatoeba-cmn-eng" / "cmn.txt"
TANG = SHARED / "tang-quatrains" / "quatrains.jsonl"
