import sys

import pytest

from profilerkit.secrets import masked, masked_arguments

HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--wandb-key=SECRET"], ["--wandb-key=***"]),
        (["--token", "SECRET"], ["--token", "***"]),
        (["-token", "SECRET"], ["-token", "***"]),
        (["--API_KEY=SECRET"], ["--API_KEY=***"]),
        (["--db-password", "SECRET", "10"], ["--db-password", "***", "10"]),
        (["--passwd=SECRET=2"], ["--passwd=***"]),
        (["--aws-credentials", "SECRET"], ["--aws-credentials", "***"]),
        (["--client_secret", "SECRET"], ["--client_secret", "***"]),
        (["+logger.auth=SECRET"], ["+logger.auth=***"]),
        (["wandb.key=SECRET\nSECRET"], ["wandb.key=***"]),
        (["--use-auth", "--lr", "0.1"], ["--use-auth", "--lr", "0.1"]),
        (["--token", "--token=SECRET"], ["--token", "--token=***"]),
        (["--tokenizer", "gpt2", "--tokenizer_name=gpt2"], ["--tokenizer", "gpt2", "--tokenizer_name=gpt2"]),
        (["--max-tokens", "512", "--tokens=1e9", "--num_keys=8"], None),
        (["--author", "me", "--keyframes", "3", "--authors=us"], None),
        (["--tokens", "SECRET", "--apiKeys=SECRET"], ["--tokens", "***", "--apiKeys=***"]),
        (
            ["--apiKey", "123456", "--HFToken=12", "--password", "1234"],
            ["--apiKey", "***", "--HFToken=***", "--password", "***"],
        ),
        (["--login", "hf_SECRETSECRET"], ["--login", "***"]),
        (["--x=sk-proj-SECRET_SECRET"], ["--x=***"]),
        (["ghp_SECRETSECRET"], ["***"]),
        (["--wandb", HEX], ["--wandb", "***"]),
        (["--commit", HEX[:31]], None),
        (["--store", "postgres://me:SECRET@db/x"], ["--store", "postgres://***@db/x"]),
        (["--sk-learn", "mask-rcnn-resnet50", "risk-averse-model"], None),
        (["train.py", "--lr=0.1", "data/keys.json"], None),
    ],
)
def test_secrets_are_taken_out_of_a_command_line_and_nothing_else(given, kept):
    found = list(masked_arguments(given))
    assert found == (given if kept is None else kept)
    assert "SECRET" not in " ".join(found)


def test_text_that_quotes_a_token_loses_it():
    assert masked(f"401 for hf_SECRETSECRET, {HEX}") == "401 for ***, ***"


def test_run_directory_holds_no_secret(light, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--wandb-key=SECRET", "--token", "SECRET", "--name=half \udcff"])
    for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "NCCL_SECRET", "DATABASE_URL"):
        monkeypatch.setenv(name, "SECRET")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with pytest.raises(ValueError, match="ghp_"), light() as prof:
        raise ValueError("no access with ghp_SECRETSECRET \udcff")
    for path in prof.directory.rglob("*"):
        assert not path.is_file() or b"SECRET" not in path.read_bytes(), path
    manifest = (prof.directory / "run.json").read_text()
    assert '["train.py","--wandb-key=***","--token","***","--name=half ?"]' in manifest
    assert '"OMP_NUM_THREADS":"3"' in manifest
