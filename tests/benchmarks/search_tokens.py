"""Tokens that TPE and promotion by rungs train until they have the grid's best, over a table of real scores.

The driver's own searcher, journal and promotion run with two slots; only a leg's training is replaced, by a look into
`search_table.json`, and time by the tokens that a leg would train.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measurement import Measured, spread
from search_table import Trained, read, the_spec

from tuneyard_pipelines.journal import Journal, SweepFolder
from tuneyard_pipelines.leg import Leg, LegResult
from tuneyard_pipelines.ranges import Point, Scalar
from tuneyard_pipelines.searcher import LegSearcher

SEEDS = 20
SLOTS = 2
NEAR = 1.01  # of the grid's best score, of which less is better


def search_tokens() -> Measured:
    """Tokens to within 1 % of the grid's best score, over those of the whole grid: at most 0.4, median of 20 seeds."""
    table = read()
    grid_tokens = sum(trained.tokens[-1] for trained in table)
    goal = NEAR * min(trained.scores[-1] for trained in table)
    shares = [_tokens_to(goal, table, seed) / grid_tokens for seed in range(1, SEEDS + 1)]
    return Measured(
        ratio=statistics.median(shares),
        bound=0.4,
        side="at_most",
        details={
            "points": len(table),
            "points_within_1_percent": sum(trained.scores[-1] <= goal for trained in table),
            "grid_tokens": grid_tokens,
            "share_of_grid": spread(shares),
            "worst_seed": round(max(shares), 4),
        },
    )


def _tokens_to(goal: float, table: Sequence[Trained], seed: int) -> float:
    """Tokens of all legs begun until a trial has the goal, also of those that still run; infinite if none gets it."""
    spec = the_spec(seed)
    by_point = {_key(trained.point): trained for trained in table}
    running: list[tuple[int, str, Leg]] = []  # by when they end, in tokens on their slot
    begun_tokens = now = 0
    with tempfile.TemporaryDirectory() as folder:
        moments = itertools.count(1)
        searcher = LegSearcher(Journal(SweepFolder(Path(folder))), spec, 1, lambda: next(moments))
        names = map(str, itertools.count())
        while True:
            while len(running) < SLOTS and isinstance(order := searcher.suggest(name := next(names)), dict):
                leg = Leg(**order["leg"])
                tokens = by_point[_key(leg.point)].tokens
                leg_tokens = tokens[leg.rung] - (tokens[leg.rung - 1] if leg.rung else 0)
                heapq.heappush(running, (now + leg_tokens, name, leg))
                begun_tokens += leg_tokens
            if not running:
                return math.inf
            now, name, leg = heapq.heappop(running)
            trained = by_point[_key(leg.point)]
            if trained.scores[leg.rung] <= goal:
                return begun_tokens
            _leave_checkpoint(leg)
            result = LegResult(
                share=spec.rungs()[leg.rung], tokens=trained.tokens[leg.rung], step=1, score=trained.scores[leg.rung]
            )
            searcher.on_trial_complete(name, {"leg": json.dumps(result.to_dict())})


def _key(point: Point) -> tuple[Scalar, ...]:
    return tuple(point[key] for key in sorted(point))


def _leave_checkpoint(leg: Leg) -> None:
    """A trial without one could not go on."""
    place = leg.attempt_folder / "checkpoints" / "00000001"
    place.mkdir(parents=True, exist_ok=True)
    (place / "manifest.json").touch()
