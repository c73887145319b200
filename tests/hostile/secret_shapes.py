"""Sixty shapes of secrets, each as it is written and with what must not survive: made up, and made at run time."""

import base64
import random
import string
from collections import namedtuple

#: What it is called; the text that holds it; the pieces of it that nobody may read.
Shape = namedtuple("Shape", "name text secrets")

_CHOICE = random.Random(20)
_LETTERS = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_WORD = "hunter" + "2"


def _drawn(count, alphabet=_LETTERS):
    return "".join(_CHOICE.choice(alphabet) for _ in range(count))


def _based(count):
    return base64.b64encode(_CHOICE.randbytes(count)).decode()


def _jwt():
    head, body = (base64.urlsafe_b64encode(text).decode().rstrip("=") for text in (b'{"alg":"HS256"}', b'{"sub":"12"}'))
    return f"{head}.{body}.{_drawn(43)}"


def _pem(kind):
    line = _based(48)
    dashes = "-" * 5
    return f"{dashes}BEGIN {kind}{dashes}\n{line}\n{_based(30)}\n{dashes}END {kind}{dashes}", line


def _tokens():
    """Words that are secrets themselves, wherever they stand."""
    yield "AWS access key", "AK" + "IA" + _drawn(16, string.ascii_uppercase + "234567")
    yield "AWS session id", "AS" + "IA" + _drawn(16, string.ascii_uppercase + "234567")
    yield "AWS secret", _based(30)
    yield "AWS session token", "IQoJb3JpZ2lu" + _based(96)
    yield "W&B key", _drawn(40, _HEX)
    yield "W&B key, new", "wandb" + "_v1_" + _drawn(22) + "_" + _drawn(40)
    yield "Google key", "AI" + "za" + _drawn(35)
    yield "Google access token", "ya" + "29." + _drawn(60)
    yield "Google client secret", "GOC" + "SPX-" + _drawn(28)
    yield "Neptune token", base64.b64encode(b'{"api_address":"https://x.y","api_key":"0"}').decode()
    yield "JSON web token", _jwt()
    yield "Stripe key", "sk" + "_live_" + _drawn(24)
    yield "SendGrid key", "S" + "G." + _drawn(22) + "." + _drawn(43)
    yield "NVIDIA key", "nv" + "api-" + _drawn(64)
    yield "Databricks token", "da" + "pi" + _drawn(32, _HEX)
    yield "PyPI token", "py" + "pi-AgEIcHlwaS5vcmc" + _drawn(60)
    yield "Vault token", "hv" + "s." + _drawn(24)
    yield "Groq key", "gs" + "k_" + _drawn(52)
    yield "Replicate token", "r" + "8_" + _drawn(37)
    yield "Docker token", "dckr" + "_pat_" + _drawn(27)
    yield "DigitalOcean token", "dop" + "_v1_" + _drawn(64, _HEX)
    yield "Azure storage key", _based(64)
    yield "Comet key", _drawn(32, _HEX)
    yield "Twilio key", "S" + "K" + _drawn(32, _HEX)
    yield "Slack token", "xo" + "xb-123456789012-1234567890123-" + _drawn(24)
    yield "Hugging Face token", "h" + "f_" + _drawn(34, string.ascii_letters)
    yield "OpenAI key", "s" + "k-proj-" + _drawn(48)
    yield "Anthropic key", "s" + "k-ant-api03-" + _drawn(40)
    yield "GitHub token", "gh" + "p_" + _drawn(36)
    yield "GitHub token, fine", "github" + "_pat_" + _drawn(22) + "_" + _drawn(59)
    yield "GitLab token", "gl" + "pat-" + _drawn(20)
    yield "npm token", "np" + "m_" + _drawn(36)
    yield "Telegram token", "123456789:AA" + _drawn(33)
    yield "Heroku key", "-".join(_drawn(count, _HEX) for count in (8, 4, 4, 4, 12))


def _said():
    """Words that are secrets by what stands beside them: the text with ``{}`` for it."""
    yield "password option", "--pass {}"
    yield "password of a database", "--db-pwd {}"
    yield "passphrase", "--passphrase={}"
    yield "user and password", "-u bob:{}"
    yield "short password option", "-p {}"
    yield "access token option", "--pat {}"
    yield "bearer option", "--bearer {}"
    yield "credentials option", "--creds {}"
    yield "session option", "--session {}"
    yield "header", "Authorization: Bearer {}"
    yield "cookie", "Cookie: session={}; theme=1"
    yield "ODBC", "Driver={{SQL}};Server=db;Uid=bob;Pwd={};"
    yield "dictionary", "{{'DB_PASS': '{}'}}"
    yield "variable", "WANDB_API_KEY={}"
    yield "words", "invalid token {}"
    yield "database", "postgres://bob:{}@db.corp.internal:5432/x"
    yield "cache", "redis://:{}@cache.corp.internal:6379/0"
    yield "shared access", "https://acct.blob.core.windows.net/c/t.json?sv=2022-11-02&sig={}%3D"
    yield "signed link", "https://b.s3.amazonaws.com/t.json?X-Amz-Signature={}"
    yield "Slack webhook", "https://hooks.slack.com/services/T0/B0/{}"


def _places():
    """People, machines and their directories."""
    yield "home", "/home/jdoe77/net/deep/train.py", ("jdoe77",)
    yield "home, short", "~jdoe77/net/train.py", ("jdoe77",)
    yield "scratch", "/scratch/jdoe77/train.py", ("jdoe77",)
    yield "bucket", "gs://team-bucket/jdoe77", ("team-bucket", "jdoe77")
    yield "address", "tcp://10.20.30.40:29500", ("10.20.30.40",)
    yield "IPv6 address", "[2001:db8:85a3::8a2e:370:7334]:29500", ("85a3", "8a2e")


def _shapes():
    for name, token in _tokens():
        tail = token[len(token) // 3 :]
        yield Shape(name, token, tuple(tail[at : at + 10] for at in range(0, len(tail) - 9, 10)))
    for name, text in _said():
        yield Shape(name, text.format(_WORD), (_WORD,))
    yield from (Shape(*place) for place in _places())
    for kind in ("RSA PRIVATE KEY", "OPENSSH PRIVATE KEY"):
        text, line = _pem(kind)
        yield Shape(kind, text, (line[:20], line[-20:]))


SHAPES = tuple(_shapes())
assert len(SHAPES) >= 60
