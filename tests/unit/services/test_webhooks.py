"""Webhooks: what is owed to whom, when it is tried again, and the commands that say so."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from driven_sweep import DrivenSweep
from hooked import NOW_MS, bringing, end, make, only_due, submit
from receiver import Receiver
from service import serving

from tuneyard import courier, jobs, logins, webhooks
from tuneyard.database import Database
from tuneyard.store import REGISTERED, Store, TrialRow
from tuneyard.trial_rows import TrialFeed
from tuneyard.webhooks import KINDS, MOST_TRIES, TEST, Answer, Hook, Webhooks, wait_s
from tuneyard_pipelines.errors import InputError, RefusedError
from tuneyard_pipelines.journal import WinnerRegistered

DOCS = (Path(__file__).resolve().parents[3] / "docs" / "webhooks.md").read_text(encoding="utf-8")
REGISTERED_AS = "dates/3: candidate is now version 3"


def told(hooks: Webhooks, hook: Hook) -> list[Any]:
    """The bodies of what it is owed or was told, oldest first."""
    return [json.loads(one.body) for one in reversed(hooks.deliveries(hook.hook_id))]


def test_each_hook_is_owed_what_it_asked_for_and_what_came_after_it(database: Database, hooks: Webhooks) -> None:
    store = Store(database)
    end(store, "before")
    everything, failures = make(hooks), make(hooks, "sweep.failed")
    end(store, "good")
    store.put_trials("good", [TrialRow("t007", 7, "t07", "completed", 1, score=0.9375, rung=1)])
    store.note_once("good", "driver", REGISTERED, REGISTERED_AS, NOW_MS)
    end(store, "bad", "failed", "invalid_spec", "postgresql://me:s3cret@host/db: no such file")
    entry = submit(store, "gone")
    store.change(entry, jobs.stopped(entry.job, "user_cancel", 9), actor="ann", now_ms=9, what="cancelled")
    hooks.owe(NOW_MS)
    hooks.owe(NOW_MS)
    found = told(hooks, everything)
    assert [(one["type"], one["data"]["sweep_id"]) for one in found] == [
        ("sweep.succeeded", "good"),
        ("candidate.registered", "good"),
        ("sweep.failed", "bad"),
        ("sweep.cancelled", "gone"),
    ]
    assert told(hooks, failures) == [found[2]]
    assert found[2]["data"]["message"] == "postgresql://me:***@host/db: no such file"
    assert (found[2]["data"]["reason"], found[2]["data"]["score"]) == ("invalid_spec", None)
    assert found[0]["timestamp"] == "2027-01-15T08:00:00.005Z"
    assert {hook.hook_id: hook.waiting for hook in hooks.all()} == {everything.hook_id: 4, failures.hook_id: 1}


def test_the_payload_of_the_docs_is_what_is_sent(database: Database, hooks: Webhooks) -> None:
    store, hook, line = Store(database), make(hooks), make(hooks, form="slack")
    entry = submit(store, "322eb644")
    store.change(entry, jobs.claimed(entry.job, 1), actor="dispatcher", now_ms=NOW_MS, what="claimed")
    store.put_trials("322eb644", [TrialRow("t007", 7, "t07", "completed", 1, score=0.9375, rung=1)])
    store.note_once("322eb644", "driver", REGISTERED, REGISTERED_AS, NOW_MS)
    hooks.owe(NOW_MS)
    [body] = told(hooks, hook)
    example = json.loads(re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)[0])
    assert {**body, "timestamp": ""} == {**example, "timestamp": ""}
    said = "Model dates/3 of sweep dates (322eb644) of ann: candidate is now version 3; t007 val/exact_match 0.9375"
    assert told(hooks, line) == [{"text": said}]


def test_slack_is_told_in_a_line_that_calls_nobody(database: Database, hooks: Webhooks) -> None:
    hook = make(hooks, form="slack")
    end(Store(database), "322eb644", "failed", "internal", "<!channel> & all")
    hooks.owe(NOW_MS)
    said = "Sweep dates (322eb644) of ann failed: internal: &lt;!channel&gt; &amp; all"
    assert told(hooks, hook) == [{"text": said}]


def test_nothing_is_owed_twice_or_left_out_whoever_is_killed(
    database: Database, hooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, hook = Store(database), make(hooks)
    for number in range(5):
        end(store, f"s{number}")
    owe, calls = webhooks._owe, iter(range(100))

    def dies(*words: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return owe(*words)

    monkeypatch.setattr(webhooks, "_owe", dies)
    with pytest.raises(KeyboardInterrupt):
        hooks.owe(NOW_MS)
    assert told(hooks, hook) == []
    monkeypatch.undo()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: Webhooks(database).owe(NOW_MS), range(4)))
    assert [one["data"]["sweep_id"] for one in told(hooks, hook)] == [f"s{number}" for number in range(5)]


def test_more_events_than_are_read_at_once_are_all_owed(
    database: Database, hooks: Webhooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_MOST_AT_ONCE", 2)
    store, hook = Store(database), make(hooks)
    for number in range(5):
        end(store, f"s{number}")
    for _ in range(3):
        hooks.owe(NOW_MS)
    assert [one["data"]["sweep_id"] for one in told(hooks, hook)] == [f"s{number}" for number in range(5)]


def test_a_model_in_the_registry_is_an_event_once_however_often_the_journal_is_read(
    database: Database, make_sweep: Callable[..., DrivenSweep]
) -> None:
    sweep, store = make_sweep(), Store(database)
    entry = submit(store, sweep.folder.sweep_id)
    sweep.create(1)
    for version in (1, 2):
        said = f"candidate is now version {version}"
        sweep.journal.append(WinnerRegistered("t001", "dates", version, said, NOW_MS))
        for feed in (TrialFeed(store), TrialFeed(store)):
            for _ in range(2):
                feed.read(sweep.folder, entry, None, NOW_MS)
    events = [event.message for event in store.events(sweep.folder.sweep_id) if event.what == REGISTERED]
    assert events == ["dates/1: candidate is now version 1", "dates/2: candidate is now version 2"]


def test_since_when_a_trial_trains_is_known_while_it_does(
    database: Database, make_sweep: Callable[..., DrivenSweep]
) -> None:
    sweep, store = make_sweep(), Store(database)
    entry, feed = submit(store, sweep.folder.sweep_id), TrialFeed(store)

    def since_ms() -> int | None:
        feed.read(sweep.folder, entry, None, NOW_MS)
        return store.trials(sweep.folder.sweep_id, order="number", mode="max")[0].since_ms

    trial = sweep.create(1)
    assert since_ms() is None
    sweep.start(trial)
    assert since_ms() == sweep.journal.state.trials[trial].started_ms > 0
    sweep.reach(trial, 0, 0.5)
    assert since_ms() is None
    sweep.start(trial, 1)
    sweep.close("lost", "gone")
    assert since_ms() is None


def test_a_failed_try_waits_for_the_next_as_the_docs_say(database: Database, hooks: Webhooks) -> None:
    hook = make(hooks)
    end(Store(database), "a")
    hooks.owe(NOW_MS)
    units = {"s": 1, "min": 60, "h": 3600}
    rows = re.findall(r"^\| (\d) \| (.*) \|$", DOCS, re.MULTILINE)
    waits = [sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+) (\w+)", said)) for _, said in rows]
    assert len(rows) == MOST_TRIES
    now_ms = NOW_MS
    for number in range(1, MOST_TRIES + 1):
        now_ms += 1000 * waits[number - 1]
        assert hooks.next_due(hook.hook_id, now_ms - 1) is None or number == 1
        assert hooks.due(now_ms) == [hook.hook_id]
        hooks.tried(only_due(hooks, hook, now_ms).delivery_id, Answer(500, "answers 500"), now_ms=now_ms, chance=0.5)
    [delivery] = hooks.deliveries(hook.hook_id)
    assert delivery.state == "given up"
    assert [one.number for one in delivery.tries] == list(range(1, MOST_TRIES + 1))
    assert {(one.status, one.error) for one in delivery.tries} == {(500, "answers 500")}
    assert delivery.tries[-1].time_ms == now_ms
    assert timedelta(hours=22) < timedelta(milliseconds=now_ms - NOW_MS) < timedelta(hours=26)
    [ended] = hooks.all()
    why = f"nothing was taken in 8 tries; see them with: tuneyard webhook deliveries {hook.hook_id}"
    assert (ended.ended_ms, ended.ended_why) == (now_ms, why), "and not what the receiver said, which may be its URL"
    assert (wait_s(1, 0.0), wait_s(1, 1.0)) == (12.0, 18.0)


def test_what_one_event_cannot_bring_ends_no_hook_that_takes_others(database: Database, hooks: Webhooks) -> None:
    hook, store = make(hooks), Store(database)
    end(store, "poison")
    hooks.owe(NOW_MS)
    poison = only_due(hooks, hook).delivery_id
    for _ in range(MOST_TRIES - 1):
        hooks.tried(poison, Answer(400, "answers 400"), now_ms=NOW_MS + 1, chance=0.5)
    end(store, "good")
    hooks.owe(NOW_MS + 2)
    hooks.tried(only_due(hooks, hook, NOW_MS + 2).delivery_id, Answer(204), now_ms=NOW_MS + 3, chance=0.5)
    hooks.tried(poison, Answer(400, "answers 400"), now_ms=NOW_MS + 4, chance=0.5)
    assert [one.state for one in hooks.deliveries(hook.hook_id)] == ["delivered", "given up"]
    assert hooks.all()[0].ended_ms is None


def test_a_receiver_that_is_gone_is_told_nothing_any_more(database: Database, hooks: Webhooks) -> None:
    hook, store = make(hooks), Store(database)
    for sweep_id in "ab":
        end(store, sweep_id)
    hooks.owe(NOW_MS)
    hooks.tried(only_due(hooks, hook).delivery_id, Answer(410, "answers 410"), now_ms=NOW_MS, chance=0.5)
    end(store, "c")
    hooks.owe(NOW_MS)
    assert hooks.due(NOW_MS * 2) == []
    assert len(hooks.deliveries(hook.hook_id)) == 2
    assert hooks.all()[0].ended_why == "its receiver says that it is gone (410)"
    assert store.events(None)[-1].message == f"{hook.hook_id}: its receiver says that it is gone (410)"
    with pytest.raises(RefusedError, match="has ended: its receiver says that it is gone"):
        hooks.test(hook.hook_id, now_ms=NOW_MS)


def test_a_test_is_tried_once_and_ends_nothing(hooks: Webhooks) -> None:
    hook = make(hooks)
    hooks.test(hook.hook_id, now_ms=NOW_MS)
    due = only_due(hooks, hook)
    assert json.loads(due.body)["type"] == TEST
    hooks.tried(due.delivery_id, Answer(500, "answers 500"), now_ms=NOW_MS, chance=0.5)
    assert hooks.due(NOW_MS * 2) == []
    assert hooks.all()[0].ended_ms is None


def test_of_a_hook_that_was_deleted_nothing_is_left(database: Database, hooks: Webhooks) -> None:
    hook = make(hooks)
    hooks.test(hook.hook_id, now_ms=NOW_MS)
    under_way = only_due(hooks, hook).delivery_id
    hooks.tried(under_way, Answer(500, "answers 500"), now_ms=NOW_MS, chance=0.5)
    assert hooks.delete(hook.hook_id, deleted_by="root", now_ms=NOW_MS).hook_id == hook.hook_id
    hooks.tried(under_way, Answer(500, "answers 500"), now_ms=NOW_MS, chance=0.5)
    assert hooks.all() == []
    for call in (
        lambda: hooks.deliveries(hook.hook_id),
        lambda: hooks.test(hook.hook_id, now_ms=NOW_MS),
        lambda: hooks.delete(hook.hook_id, deleted_by="root", now_ms=NOW_MS),
    ):
        with pytest.raises(InputError, match=f"webhook '{hook.hook_id}': there is none of this id"):
            call()


@pytest.mark.parametrize(
    ("url", "events", "form", "message"),
    [
        ("ftp://h/s3cret", (), "json", "url: not an http or https address"),
        ("hooks.example.org/s3cret", (), "json", "url: "),
        ("http:///s3cret", (), "json", "url: not an http or https address"),
        ("https://me:s3cret@h/", (), "json", "url: holds a user"),
        ("https://me:s3/cret@h/", (), "json", "url: no address; give one such as"),
        ("http://h:0/s3cret", (), "json", "url: found port 0; allowed: 1 to 65535"),
        ("https://h:99999/s3cret", (), "json", "url: found port 99999"),
        ("https://h/" + "s3cret" * 400, (), "json", "at most 2000 characters"),
        ("https://h/", ("sweep.exploded",), "json", r"event: found 'sweep.exploded'; allowed: sweep.succeeded, "),
        ("https://h/", ("webhook.test",), "json", "event: found 'webhook.test'"),
        ("https://h/", (), "xml", "format: found 'xml'; allowed: json, slack"),
    ],
)
def test_what_no_hook_can_be_made_of_is_named_and_no_url_with_it(
    hooks: Webhooks, url: str, events: tuple[str, ...], form: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        make(hooks, *events, url=url, form=form)
    assert "s3cret" not in str(refused.value)
    assert hooks.all() == []


def test_every_event_has_its_row_in_the_docs() -> None:
    assert dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", DOCS, re.MULTILINE)) == KINDS


def test_the_secret_is_told_once_and_stands_nowhere_else(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, cli: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(courier, "PASS_S", 0.02)
    caplog.set_level(logging.INFO)
    home = tmp_path / ".tuneyard"
    with serving(home) as served, bringing(served.service.webhooks):
        logins.keep(home, logins.Login(served.url, served.token("root", "admin")))
        made = cli("webhook", "create", receiver.url + "/s3cret", "--event", "sweep.failed")
        secret = made.out.strip()
        assert secret.startswith("whsec_")
        assert "of sweep.failed; its secret is not shown again" in made.err
        [hook] = json.loads(cli("webhook", "list", "--json").out)
        assert (hook["events"], hook["format"], hook["created_by"]) == (["sweep.failed"], "json", "root")
        hook_id = hook["hook_id"]
        assert cli("webhook", "test", hook_id).out == f"webhook {hook_id}: taken (204)\n"
        receiver.answers = [(500, {}, b"no")]
        failed = cli("webhook", "test", hook_id)
        assert (failed.code, failed.err) == (1, f"error: webhook {hook_id}: answers 500: no\n")
        rows = cli("webhook", "deliveries", hook_id).out.splitlines()
        assert [row.split()[1] for row in rows[1:]] == [TEST, TEST]
        assert [("given up" in row, "answers 500: no" in row) for row in rows[1:]] == [(True, True), (False, False)]
        assert cli("webhook", "list").out.splitlines()[1].split()[-1] == "good"
        told = [cli("webhook", *words, "--json").out for words in (("list",), ("deliveries", hook_id))]
        events = served.service.store.events(None)
        assert cli("webhook", "delete", hook_id).out == f"webhook {hook_id} is deleted\n"
        assert cli("webhook", "test", hook_id).code == 2
    assert not any(secret in text for text in (*told, caplog.text, *(event.message for event in events)))
    assert "s3cret" not in caplog.text + "".join(event.message for event in events)


def test_a_test_that_nobody_sends_says_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.setattr("tuneyard.cli.webhook.PATIENCE_S", 0.0)
    home = tmp_path / ".tuneyard"
    with serving(home) as served:
        logins.keep(home, logins.Login(served.url, served.token("root", "admin")))
        hook = json.loads(cli("webhook", "create", "https://hooks.test/", "--json").out)
        done = cli("webhook", "test", hook["hook_id"])
    assert done.code == 3
    assert "see that a dispatcher runs" in done.err
