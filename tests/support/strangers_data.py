"""Files as strangers bring them: sentence pairs, a novel, a table with five columns, poems; seeded, a few kilobytes."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

WHO = {"the cat": "die Katze", "my brother": "mein Bruder", "the old man": "der alte Mann", "she": "sie"}
DOES = {"sees": "sieht", "likes": "mag", "finds": "findet", "buys": "kauft", "forgets": "vergisst"}
WHAT = {"a house": "ein Haus", "the red car": "das rote Auto", "the river": "den Fluss", "some bread": "etwas Brot"}
WORDS = (
    "the of and to in is that it was for with you said old house river night morning walked quiet stone bread letter "
    "window light slowly under over never always"
)


def pair(rng: random.Random) -> tuple[str, str]:
    """A sentence in English and in German."""
    chosen = [rng.choice(list(words.items())) for words in (WHO, DOES, WHAT)]
    number = rng.randrange(1000)
    one, other = (" ".join(words[side] for words in chosen) for side in (0, 1))
    return f"{one} and counts to {number}.", f"{other} und zählt bis {number}."


def sentence(rng: random.Random) -> str:
    words = WORDS.split(" ")
    return " ".join(rng.choice(words) for _ in range(rng.randint(5, 14))).capitalize() + "."


def write_pairs(path: Path, count: int = 400, header: str = "") -> Path:
    """Tab-separated sentence pairs."""
    rng = random.Random(1)
    rows = [f"{header}\n"] if header else []
    path.write_text("".join(rows + ["\t".join(pair(rng)) + "\n" for _ in range(count)]), encoding="utf-8")
    return path


def write_novel(path: Path, chapters: int = 8, encoding: str = "utf-8") -> Path:
    """Paragraphs of some lines, parted by blank lines."""
    rng = random.Random(2)
    parts = []
    for chapter in range(chapters):
        parts.append(f"Chapter {chapter + 1}")
        parts += ["\n".join(sentence(rng) for _ in range(rng.randint(2, 6))) for _ in range(25)]
    path.write_bytes("\n\n".join(parts).encode(encoding))
    return path


def write_reviews(path: Path, count: int = 300) -> Path:
    """A table of an id, a date, a number, a category, and a text with commas."""
    rng = random.Random(3)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "date", "stars", "kind", "review"])
        for number in range(count):
            text = ", ".join(sentence(rng) for _ in range(rng.randint(1, 3)))
            date = f"2024-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}"
            table.writerow([f"R{number:05d}", date, rng.randint(1, 5), rng.choice(["food", "book"]), text])
    return path


def write_poems(path: Path, count: int = 250) -> Path:
    """A line of JSON a poem: its author, title and lines."""
    rng = random.Random(4)
    poems = [
        {
            "author": f"Poet {rng.randrange(9)}",
            "title": sentence(rng),
            "text": "\n".join(sentence(rng) for _ in range(4)),
        }
        for _ in range(count)
    ]
    path.write_text("".join(json.dumps(poem) + "\n" for poem in poems), encoding="utf-8")
    return path


def write_chinese(path: Path, count: int = 200) -> Path:
    """Lines of frequent characters, in GB18030."""
    rng = random.Random(5)
    frequent = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里"
    lines = ["".join(rng.choice(frequent) for _ in range(20)) + "。" for _ in range(count)]
    path.write_bytes(("\n".join(lines) + "\n").encode("gb18030"))
    return path


FOUR = {
    "pairs.tsv": write_pairs,
    "novel.txt": write_novel,
    "reviews.csv": write_reviews,
    "poems.jsonl": write_poems,
}
