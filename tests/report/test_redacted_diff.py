"""A comparison tells no names, tokens and paths unless it is asked to, in every format."""

import json

import pytest

from profilerkit.model import revise
from profilerkit.model.diff import Difference, FindingChange
from profilerkit.report import redaction
from profilerkit.report.redaction import redacted_diff
from profilerkit.results import Diff, as_diff
from profilerkit.rundir.places import Identity
from tests.report.test_diff import hostile

TOKEN = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
NAMES = Identity(users=frozenset(("jdoe",)), hosts=frozenset(("gpu-node-17",)))
SECRETS = ("jdoe", "gpu-node-17", "undisclosed", TOKEN, "hunter2hunter2")


def telling() -> Diff:
    """A comparison whose every kind of text names somebody or something."""
    base = hostile()
    path = "/data/undisclosed/team/net/train.py"
    command, with_token = f"train.py --data {path}", f"train.py --token {TOKEN}"
    reason = f"no {path} on gpu-node-17"
    return as_diff(
        revise(
            base,
            verdict="faster",
            before=revise(base.before, name="gpu-node-17"),
            after=revise(base.after, name="jdoe"),
            differences=(
                Difference(group="work", name="command", before=command, after=with_token),
                Difference(group="settings", name="WANDB_API_KEY", before=None, after="hunter2hunter2"),
                Difference(group="settings", name="num_workers", before="2", after="8"),
            ),
            findings=(FindingChange(rule="IN001", title=f"Waits in {path}", state="gone", reason=reason),),
            notes=(f"/scratch/jdoe/run was read on gpu-node-17 with token={TOKEN}",),
            obstacles=(f"{path} is missing",),
        )
    )


@pytest.fixture(autouse=True)
def as_jdoe(monkeypatch):
    monkeypatch.setattr(redaction, "identity_of", lambda: NAMES)


@pytest.mark.parametrize("form", ["to_json", "to_html", "to_markdown"])
def test_names_tokens_and_paths_are_left_out_unless_it_is_asked_for_them(form, tmp_path):
    diff = telling()
    told = getattr(diff, form)(tmp_path / "diff")
    assert (tmp_path / "diff").read_text("utf-8") == told
    assert [secret for secret in SECRETS if secret in told] == []
    whole = getattr(diff, form)(redact=False)
    assert [secret for secret in SECRETS if secret not in whole] == []


def test_numbers_and_harmless_settings_stay():
    told = json.loads(telling().to_json())
    assert told["step"] == json.loads(telling().to_json(redact=False))["step"]
    assert told["differences"][2] == {"group": "settings", "name": "num_workers", "before": "2", "after": "8"}
    assert told["differences"][0]["before"] == "train.py --data …"


def test_what_was_redacted_stays_the_same():
    once = redacted_diff(telling(), NAMES)
    assert redacted_diff(once, NAMES) == once
