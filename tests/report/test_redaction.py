"""Redaction: nothing names a person, a machine or a place, and everything else stays as it is."""

import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Fix
from profilerkit.model.memory import OutOfMemory
from profilerkit.report import json as report_json
from profilerkit.report import markdown, terminal
from profilerkit.report.html import render as html
from profilerkit.report.inert import short_paths
from profilerkit.report.redaction import redacted
from profilerkit.results import as_report
from profilerkit.rules import RULES
from profilerkit.rules.docs import page_of
from profilerkit.rundir.places import Identity
from tests.report.samples import SAMPLES

IDENTITY = Identity(users=frozenset({"mallory"}), hosts=frozenset({"gpu-17.lab.example"}))
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
    assert run.command == ("train.py --data=… --user … --api-key … SECRETS_DIR=… --master-addr … --epochs 3 out=…")
    assert run.settings == {"trace_steps": "10", "WORLD_SIZE": "8", "MY_STORE": "***", "wandb_key": "***"}
    assert run.ended == "ConnectionError"
    assert (run.name, run.files) == ("<user>", ("<user>", "rank0.json"))
    assert shown.kernels[0].line == "…/<user>/net.py(3): f"
    finding = shown.outcomes[0].findings[0]
    assert finding.title == "`…/net/train.py(12): forward` waits"
    assert finding.evidence[0].origin == "<host>_4711.1719845000000000000.pt.trace.json"
    assert shown.trust.notes == ("~/run lost its end.",)
    assert shown.oom.message == ""


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
        ("/nfs/home/jo/a/b/c.py", "…/b/c.py"),
        ("D:\\work\\jo\\net\\train.py(3)", "…/net/train.py(3)"),
        ("/tmp/x.py", "…/x.py"),
    ],
)
def test_only_absolute_paths_are_cut(text, expected):
    assert short_paths(text) == expected


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
    ("said", "shown", "local"),
    [
        ("KeyError: 'input_ids'", "KeyError", "KeyError: 'input_ids'"),
        ("KeyError: 1501", "KeyError", "KeyError: 1501"),
        ("KeyError: 'password: hunter2x9'", "KeyError", "KeyError: …"),
        ("mylib.Stopped: at jo@x of /data/jo", "mylib.Stopped", "mylib.Stopped: at … of …"),
        ("bpe.TokenError: unknown token: pad", "bpe.TokenError", "bpe.TokenError"),
        ("AuthError: sesame", "AuthError", "AuthError"),
        ("OSError: no db.internal:29500 (64x128)", "OSError", "OSError: no <host>:29500 (64x128)"),
        ("sys.exit(1): no key sesame", "sys.exit(1)", "sys.exit(1): no …"),
        ("KeyError in worker 0: KeyError: 'a'", "KeyError in worker 0", "KeyError in worker 0: KeyError: 'a'"),
        ("ValueError\nof jo", "ValueError", "ValueError: of jo"),
    ],
)
def test_of_what_a_program_said_others_see_the_class_and_you_its_plain_words(said, shown, local):
    report = SAMPLES["input_bound"]()
    quoted = f"The run failed after 3 steps: {said}"
    report = revise(report, run=revise(report.run, ended=said, failure=quoted, messages=(said,)))
    for is_local, expected in ((False, shown), (True, local)):
        masked = redacted(report, Identity(), is_local=is_local)
        assert (masked.run.ended, masked.run.failure) == (expected, f"The run failed after 3 steps: {expected}")
        assert masked.run.messages == ()
        assert redacted(masked, Identity(), is_local=is_local) == masked


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("it ended with ValueError: /data/jo is empty", "it ended with ValueError"),
        ("RuntimeError in start: no /data/jo", "RuntimeError in start"),
        ("login failed, password='hunter2'", "login failed, password='***'"),
        ("{'api_key': 'abcd1234'}", "{'api_key': '***'}"),
        ("Authorization: Bearer eyJabc", "Authorization: Bearer ***"),
        ("token: abc1234", "token: ***"),
        ("login with Token: sesame", "login with Token: ***"),
        ("at c10::DispatchKey::CUDA", "at c10::DispatchKey::CUDA"),
        ("12 ms per token: 512 tokens in a pass: 3 ms", "12 ms per token: 512 tokens in a pass: 3 ms"),
        ("connect to (10.0.0.1, 29500)", "connect to (<host>, 29500)"),
        ("[node-3.lab.example]:29500 [fe80::1:2:3]:29500", "[<host>]:29500 [<host>]:29500"),
        ("no route to 10.2.3.4; see https://pytorch.org/docs", "no route to <host>; see https://pytorch.org/docs"),
        ("std::a::b of train.py:2950, 12:30:01", "std::a::b of train.py:2950, 12:30:01"),
        ("gcc -I/home/ann/include //home/ann//x", "gcc -I~/include ~/x"),
        ("/data//team/undisclosed/net/train.py", "…/net/train.py"),
        ("\\\\files\\users\\ann\\train.py", "~/train.py"),
        ('File "/home/ann smith/x.py", line 3', 'File "~/x.py", line 3'),
        ("reads /home/bob smith/x/y", "reads ~/x/y"),
        ("reads /scratch/ann lee/x/y", "reads …/x/y"),
        ("postgres://u:pw@db.internal/x tcp://10.2.3.4:29500", "postgres://… tcp://…"),
        ("s3://bucket/jo/a.json?sig=abc", "s3://…/a.json"),
        ("https://u:pw@github.com/x tcp://u:pw@localhost/x", "https://***@github.com/x tcp://***@localhost/x"),
        ("https://u:pw@[fe80::1]:443/x", "https://…"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-DEF_123 x", "*** x"),
        ("npm_config_registry_of_this_machine eyJ glpat-x", "npm_config_registry_of_this_machine eyJ glpat-x"),
    ],
)
def test_secrets_places_and_machines_in_any_text_are_masked(said, shown):
    report = SAMPLES["input_bound"]()
    report = revise(report, run=revise(report.run, name=said), trust=revise(report.trust, notes=(said,)))
    masked = redacted(report, Identity())
    assert (masked.run.name, masked.trust.notes) == (shown, (shown,))
    assert redacted(masked, Identity()) == masked


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("10", "10"),
        ("None", "None"),
        ("expandable_segments:True,max_split_size_mb:128", "expandable_segments:True,max_split_size_mb:128"),
        ("granularity=fine,compact,1,0", "granularity=fine,compact,1,0"),
        ("hunter2", "***"),
        ("/data/jo", "***"),
        ("redis://:pw@cache:6379/0", "***"),
        ("GPU-5f0b4a1e", "***"),
    ],
)
def test_numbers_and_plain_words_of_known_settings_are_shown(value, shown):
    report = SAMPLES["input_bound"]()
    settings = {"NCCL_ALGO": value, "trace_steps": value, "wandb_key": "sesame", "MY_STORE": "sesame"}
    masked = redacted(revise(report, run=revise(report.run, settings=settings)), Identity())
    assert masked.run.settings == {"NCCL_ALGO": shown, "trace_steps": shown, "wandb_key": "***", "MY_STORE": "***"}


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
    code = "sorted(x, key=operator.itemgetter(1)), DataLoader(pin_memory=True, batch_size=64)"
    report = SAMPLES["input_bound"]()
    first, *others = report.outcomes
    finding = revise(first.findings[0], fix=Fix(text="Sort.", code=code))
    report = revise(report, outcomes=(revise(first, findings=(finding,)), *others))
    assert redacted(report, Identity()).outcomes[0].findings[0].fix.code == code
