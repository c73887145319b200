"""Redaction: nothing names a person, a machine or a place, and everything else stays as it is."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.model.change import revise
from profilerkit.model.finding import Evidence, Fix
from profilerkit.model.memory import OutOfMemory
from profilerkit.report import json as report_json
from profilerkit.report import markdown, terminal
from profilerkit.report.html import render as html
from profilerkit.report.inert import short_paths, without_homes
from profilerkit.report.redaction import redacted
from profilerkit.results import as_report
from profilerkit.rules import RULES
from profilerkit.rules.docs import page_of
from profilerkit.rundir.places import Identity
from tests.report.samples import SAMPLES

IDENTITY = Identity(
    users=frozenset({"mallory"}), hosts=frozenset({"gpu-17.lab.example"}), homes=frozenset({"/srv/m h"})
)
TOKEN = "hf_" + "a1B2" * 5
PRIVATE = ("mallory", "gpu-17", "lab.example", "/srv/m h", "/data/team", TOKEN, "hunter2", "db.internal", "10.1.2.3")


def leaking():
    """A report in which every kind of text field names somebody, some machine or some place."""
    report = SAMPLES["input_bound"]()
    (first, *others) = report.outcomes
    finding = first.findings[0]
    evidence = Evidence(
        id="E1",
        label="Reads of /data/team/imagenet/train/x.jpg",
        value=1.0,
        unit="count",
        source="measured",
        origin="gpu-17_4711.1719845000000000000.pt.trace.json",
    )
    finding = revise(
        finding,
        title="`/srv/m h/net/train.py(12): forward` waits",
        why=f"The loader of gpu-17.lab.example read with {TOKEN}.",
        evidence=(evidence, *finding.evidence[1:]),
    )
    kernels = (revise(report.kernels[0], line="/data/team/mallory/net.py(3): f"), *report.kernels[1:])
    return revise(
        report,
        outcomes=(revise(first, findings=(finding,)), *others),
        kernels=kernels,
        ranks=tuple(revise(rank, origin="/scratch/lab/mallory/rank0.json") for rank in report.ranks),
        trust=revise(report.trust, notes=("C:\\Users\\mallory\\run lost its end.",), damaged=("/data/team/a/b.json",)),
        oom=OutOfMemory(device="cuda:0", message="Error: /data/team/lib/x.so on mallory@gpu-17 (API_KEY=hunter2)"),
        run=revise(
            report.run,
            name="mallory",
            files=("mallory", "rank0.json"),
            command=f"train.py --data=/data/team/imagenet/train --user mallory --api-key hunter2 {TOKEN} "
            "SECRETS_DIR=/srv/hunter2 --master-addr db.internal:29500 --epochs 3 out=runs/mallory/first",
            ended="ConnectionError: [db.internal:29500] and 10.1.2.3:4321 refused mallory@mail.example",
            failure="Rank 0 failed first: OSError: /srv/m h/data/x.bin",
            settings={"trace_steps": "10", "WORLD_SIZE": "8", "MY_STORE": "hunter2", "wandb_key": "hunter2"},
        ),
    )


@pytest.fixture(scope="module")
def shown():
    return redacted(leaking(), IDENTITY)


def verbosely(report):
    return terminal.render(report, verbose=True)


@pytest.mark.parametrize("write", [report_json.render, markdown.render, html, verbosely])
def test_no_renderer_tells_whose_run_it_was(shown, write):
    after = write(shown)
    assert [word for word in PRIVATE if word in re.sub(r"base64,[A-Za-z0-9+/=]+", "", after)] == []


def test_what_was_not_private_is_still_there(shown):
    run = shown.run
    assert run.command == (
        "train.py --data=…/imagenet/train --user <user> --api-key *** *** SECRETS_DIR=*** "
        "--master-addr <host>:29500 --epochs 3 out=runs/<user>/first"
    )
    assert run.settings == {"trace_steps": "10", "WORLD_SIZE": "8", "MY_STORE": "***", "wandb_key": "***"}
    assert run.ended == "ConnectionError: [<host>:29500] and <host>:4321 refused <user>@<host>"
    assert (run.name, run.files) == ("<user>", ("<user>", "rank0.json"))
    assert shown.kernels[0].line == "…/<user>/net.py(3): f"
    finding = shown.outcomes[0].findings[0]
    assert finding.title == "`~/net/train.py(12): forward` waits"
    assert finding.evidence[0].origin == "<host>_4711.1719845000000000000.pt.trace.json"
    assert shown.trust.notes == ("~/run lost its end.",)
    assert shown.oom.message == "Error: …/lib/x.so on <user>@<host> (API_KEY=***)"


def test_the_page_says_that_names_are_left_out_and_how_to_keep_them(shown):
    section = html(shown).partition('id="run"')[2]
    assert "left out" in section
    assert "--no-redact" in section
    assert "--no-redact" not in html(leaking())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_redacted_report_stays_the_same_and_can_be_saved(name):
    once = redacted(SAMPLES[name](), IDENTITY)
    assert once.run.redacted
    assert redacted(once, IDENTITY) == once
    assert report_json.load(report_json.render(once)).run.redacted


@pytest.mark.parametrize("word", ["train", "input", "gpu", "step", "e", "sum", "data"])
def test_a_user_or_host_called_like_a_word_costs_no_word(word):
    report = SAMPLES["input_bound"]()
    report = revise(report, run=revise(report.run, command=f"{word}.py --{word} {word} --lr 0.1"))
    assert redacted(report, Identity(users=frozenset({word}), hosts=frozenset({word}))) == redacted(report, Identity())


def test_closed_words_stay_even_when_a_host_is_called_like_one():
    report = SAMPLES["input_bound"]()
    shown = redacted(report, Identity(hosts=frozenset({"input-bound"})))
    assert shown.verdict.bound == "input-bound"
    assert report_json.load(report_json.render(shown)) == shown


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_advice_of_every_rule_survives(rule):
    mask = redacted(_carrying(page_of(rule)), IDENTITY)
    assert mask.outcomes[0].page == page_of(rule)


def _carrying(page):
    report = SAMPLES["input_bound"]()
    return revise(report, outcomes=(revise(report.outcomes[0], page=page),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("src/model/net.py(3): forward", "src/model/net.py(3): forward"),
        ("see https://pytorch.org/docs/stable/data.html", "see https://pytorch.org/docs/stable/data.html"),
        ("s3://bucket/a/b/c", "s3://bucket/a/b/c"),
        ("mount a larger /dev/shm, /sys/fs/cgroup/cpu.max", "mount a larger /dev/shm, /sys/fs/cgroup/cpu.max"),
        ("12 ms/step and 3 /s, and/or", "12 ms/step and 3 /s, and/or"),
        ("file:///data/a/b/c.py", "file://…/b/c.py"),
        ("--x=/data/a/b/c,/data/d/e/f", "--x=…/b/c,…/e/f"),
        ("/nfs/home/jo/a/b/c.py", "~/a/b/c.py"),
        ("D:\\work\\jo\\net\\train.py(3)", "…/net/train.py(3)"),
        ("/tmp/x.py", "/tmp/x.py"),
    ],
)
def test_only_absolute_paths_are_cut(text, expected):
    assert short_paths(text) == expected


def test_a_home_is_taken_whole():
    assert without_homes("/srv/jo/x /srv/joan/x", ["/srv/jo"]) == "~/x /srv/joan/x"
    assert without_homes("a/b", ["/"]) == "a/b"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="/\\a.:=@ ~…-_1'(<>", max_size=60))
def test_any_text_is_redacted_at_once_and_for_good(text):
    report = SAMPLES["input_bound"]()
    report = revise(report, run=revise(report.run, command=text, ended=text, name=text))
    small = revise(report, outcomes=(), kernels=(), steps=revise(report.steps, rows=()))
    once = redacted(small, IDENTITY)
    assert redacted(once, IDENTITY) == once


def test_a_long_hostile_text_takes_no_longer_than_its_length_allows():
    report = SAMPLES["input_bound"]()
    for piece in (
        "/",
        "/a",
        "a",
        "a=",
        "a@",
        "a.",
        "1_",
        "--token ",
        "\\",
        "C:\\a",
        "_1.pt.trace",
        "eyJaaaaaaaaaa-",
        "://:",
        ":",
        "a: ",
        "a:'",
        "KeyError:",
        "KeyError: ",
        "KeyError:a",
        "ValueError:",
        "ValueError:a",
        "special token: ",
        "WORLD_SIZE: ",
    ):
        text = piece * (200_000 // len(piece))
        shown = redacted(revise(report, run=revise(report.run, command=text, ended=text)), IDENTITY)
        assert msgspec.json.encode(shown)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("login failed, password='hunter2'", "login failed, password='***'"),
        ("{'api_key': 'abcd1234'}", "{'api_key': '***'}"),
        ("Authorization: Bearer eyJabc", "Authorization: Bearer ***"),
        ("KeyError: 'input_ids'", "KeyError: 'input_ids'"),
        ("KeyError: 1501", "KeyError: 1501"),
        ("AuthError: 12345-abcd", "AuthError: ***"),
        ("bpe.TokenError: unknown token: pad at 12", "bpe.TokenError: unknown token: pad at 12"),
        ("KeyError: 'password: hunter2x9'", "KeyError: 'password: ***'"),
        ("AuthError: bad token: hf_abcdefgh, password: hunter", "AuthError: bad token: ***, password: ***"),
        ("Error: password: hunter2x9", "Error: password: ***"),
        ("token: abc1234", "token: ***"),
        ("KeyError: 'corrupt sample 1501'", "KeyError: 'corrupt sample 1501'"),
        ("jwt.InvalidTokenError: 9f8a7b6c5d4e3f2a", "jwt.InvalidTokenError: ***"),
        ("wandb.errors.AuthError: 0123abcd4567efab", "wandb.errors.AuthError: ***"),
        ("ValueError: InvalidAPIKeyError: abcd1234efgh5678", "ValueError: InvalidAPIKeyError: ***"),
        ("KeyError: net.AuthError: abcd1234efgh5678", "KeyError: net.AuthError: ***"),
        ("SecretError='s3cr3tvalue99' AuthError: Bearer abcd", "SecretError='***' AuthError: Bearer ***"),
        ("AuthError: abcdef-ghijkl", "AuthError: ***"),
        ("ValueError:password: hunter2x9", "ValueError:password: ***"),
        ("login failed: password: hunter2x9", "login failed: password: ***"),
        ("token: hunter", "token: ***"),
        ("login with Token: sesame", "login with Token: ***"),
        ("known token: pad, Unexpected token: eof", "known token: ***, Unexpected token: eof"),
        ("special tokens: pad, not-special tokens: eos", "special tokens: pad, not-special tokens: ***"),
        ("at c10::DispatchKey::CUDA", "at c10::DispatchKey::CUDA"),
        ("wandb_key: 'secret'", "wandb_key: '***'"),
        ("connect to (10.0.0.1, 29500)", "connect to (<host>, 29500)"),
        ("tcp://10.2.3.4:29500 [node-3.lab.example]:29500", "tcp://<host>:29500 [<host>]:29500"),
        ("no route to 10.2.3.4; see https://pytorch.org/docs", "no route to <host>; see https://pytorch.org/docs"),
        ("gcc -I/home/ann/include //home/ann//x", "gcc -I~/include ~/x"),
        ("/data//team/undisclosed/net/train.py", "…/net/train.py"),
        ("\\\\files\\users\\ann\\train.py", "~/train.py"),
        ('File "/home/ann smith/x.py", line 3', 'File "~/x.py", line 3'),
    ],
)
def test_what_a_program_says_of_secrets_places_and_machines_is_masked(said, shown):
    report = SAMPLES["input_bound"]()
    report = revise(report, run=revise(report.run, failure=said), trust=revise(report.trust, notes=(said,)))
    masked = redacted(report, Identity())
    assert (masked.run.failure, masked.trust.notes) == (shown, (shown,))
    assert redacted(masked, Identity()) == masked


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("postgres://u:pw@db.internal/x", "postgres://***@<host>/x"),
        ("--store=redis://:pw@cache:6379/0", "--store=redis://***@<host>:6379/0"),
        ("https://***@db.internal:5432/x", "https://***@<host>:5432/x"),
        ("https://u:pw@[fe80::1]:443/x", "https://***@<host>:443/x"),
        ("https://u:pw@github.com/x tcp://u:pw@localhost/x", "https://***@github.com/x tcp://***@localhost/x"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_123 x", "*** x"),
        ("glpat-abcdefghij0123456789", "***"),
        ("npm_" + "a1B2" * 9, "***"),
        ("npm_config_registry_of_this_machine eyJ glpat-x", "npm_config_registry_of_this_machine eyJ glpat-x"),
        ("--data /home/bob smith/x/y", "--data ~/x/y"),
        ("--data /data/home/bob smith/x", "--data ~/x"),
        ("--data /home/ann lee/x", "--data ~/x"),
        ("--data /scratch/ann lee/x/y", "--data …/x/y"),
    ],
)
def test_no_secret_host_or_part_of_a_name_is_left_in_a_command_a_setting_or_a_title(said, shown):
    report = SAMPLES["input_bound"]()
    report = revise(report, run=revise(report.run, command=said, failure=said, settings={"store": said}, name=said))
    names = Identity(users=frozenset({"ann lee"}), homes=frozenset({"/home/bob smith"}))
    run = redacted(report, names).run
    assert (run.command, run.failure, run.settings["store"], run.name) == (shown,) * 4
    assert redacted(redacted(report, names), names) == redacted(report, names)


def test_what_a_report_writes_itself_names_nobody_unless_it_is_told_to(tmp_path):
    report = leaking()
    headline = "Training waits for /data/undisclosed/team/x.bin"
    report = revise(report, verdict=revise(report.verdict, headline=headline))
    for write in (as_report(report).to_html, as_report(report).to_json, as_report(report).to_markdown):
        for path in (None, tmp_path / "report"):
            told, kept = write(path), write(path, redact=False)
            assert "undisclosed" not in told
            assert "undisclosed" in kept
            assert path is None or path.read_text(encoding="utf-8") == kept
    assert "undisclosed" not in as_report(report)._repr_html_()
    assert "…/team/x.bin" in as_report(report)._repr_html_()


def test_code_of_a_fix_keeps_its_keywords():
    code = "sorted(x, key=operator.itemgetter(1)), DataLoader(auth=x)"
    report = SAMPLES["input_bound"]()
    first, *others = report.outcomes
    finding = revise(first.findings[0], fix=Fix(text="Sort.", code=code))
    report = revise(report, outcomes=(revise(first, findings=(finding,)), *others))
    assert redacted(report, Identity()).outcomes[0].findings[0].fix.code == code
