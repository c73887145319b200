import doctest
from datetime import date

import pytest

from profilerkit import config
from profilerkit.config import Settings, Suppression, load_settings
from profilerkit.errors import ConfigError


def write_pyproject(directory, text):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pyproject.toml").write_text(text, encoding="utf-8")


def test_without_any_source_the_defaults_hold(tmp_path):
    assert load_settings({}, environment={}, start=tmp_path) == Settings()


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path):
    write_pyproject(
        tmp_path, '[tool.profilerkit]\nselect = ["IN"]\nignore = "CO001, CO002"\nfail-on = "low"\ndevice = "l4"\n'
    )
    environment = {"PROFILERKIT_FAIL_ON": "medium", "PROFILERKIT_DEVICE": "t4", "PROFILERKIT_SELECT": ""}
    settings = load_settings({"device": "h100-sxm", "fail_on": None}, environment=environment, start=tmp_path)
    assert settings == Settings(select=("IN",), ignore=("CO001", "CO002"), device="h100-sxm", fail_on="medium")


def test_the_nearest_pyproject_is_the_one_that_counts(tmp_path):
    write_pyproject(tmp_path, '[tool.profilerkit]\nselect = ["IN"]\n')
    write_pyproject(tmp_path / "near", "[project]\nname = 'x'\n")
    (tmp_path / "near" / "deep").mkdir()
    assert load_settings({}, environment={}, start=tmp_path / "near" / "deep") == Settings()
    (tmp_path / "far").mkdir()
    assert load_settings({}, environment={}, start=tmp_path / "far").select == ("IN",)


def test_repeated_flags_and_commas_add_up(tmp_path):
    settings = load_settings({"select": ["IN,CO", "OV001"]}, environment={}, start=tmp_path)
    assert settings.select == ("IN", "CO", "OV001")


def test_communication_kernels_keep_their_commas_and_blanks_separate_them_in_text(tmp_path):
    write_pyproject(tmp_path, "[tool.profilerkit]\ncommunication-kernels = ['all_reduce=^my_sum{1,2}', 'x']\n")
    assert load_settings({}, environment={}, start=tmp_path).communication_kernels == ("all_reduce=^my_sum{1,2}", "x")
    environment = {"PROFILERKIT_COMMUNICATION_KERNELS": "^a,b ^c"}
    assert load_settings({}, environment=environment, start=tmp_path).communication_kernels == ("^a,b", "^c")
    flags = {"communication_kernels": ["^d"]}
    assert load_settings(flags, environment=environment, start=tmp_path).communication_kernels == ("^d",)


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ('[tool.profilerkit]\nselekt = ["IN"]\n', "unknown setting 'selekt'", "did you mean select?"),
        ("[tool.profilerkit]\nxyz = 1\n", "unknown setting 'xyz'", "known settings: select, ignore, device, fail-on"),
        ("[tool.profilerkit]\nselect = 3\n", "select is not a list of rule codes", 'write select = ["IN", "CO003"]'),
        ("[tool.profilerkit]\nselect = [3]\n", "select is not a list of rule codes", 'write select = ["IN", "CO003"]'),
        ("[tool.profilerkit]\ncommunication-kernels = 3\n", "is not a list of patterns", "all_reduce=^my_all_reduce"),
        ("[tool.profilerkit]\ndevice = 3\n", "device is not text", 'write device = "…"'),
        ('[tool.profilerkit]\nfail-on = "hihg"\n', "'hihg' is not a severity", "did you mean high?"),
        ("[tool.profilerkit]\nrules-path = 3\n", "rules-path is not text", 'write rules-path = "…"'),
        ("[tool.profilerkit]\nrules = 3\n", "rules is not a table of tables", "[tool.profilerkit.rules.IN001]"),
        ("[tool.profilerkit.rules]\nIN001 = 3\n", "rules is not a table of tables", "smallest_share = 0.1"),
        (
            "[tool.profilerkit]\nsuppress = ['IN001']\n",
            "suppress is not a list of tables",
            "[[tool.profilerkit.suppress]]",
        ),
        ('[[tool.profilerkit.suppress]]\nrule = "IN001"\n', "has no reason", 'reason = "…"'),
        ('[[tool.profilerkit.suppress]]\nrule = "IN001"\nreason = " "\n', "has no reason", 'reason = "…"'),
        ('[[tool.profilerkit.suppress]]\nreason = "x"\n', "has no rule", 'rule = "IN002"'),
        ('[[tool.profilerkit.suppress]]\nrule = "A"\nreson = "x"\n', "unknown key 'reson'", "did you mean reason?"),
        (
            '[[tool.profilerkit.suppress]]\nrule = "A"\nreason = "x"\nuntil = "soon"\n',
            "'soon' is not a day",
            "write until = 2026-12-31",
        ),
        (
            '[[tool.profilerkit.suppress]]\nrule = "A"\nreason = "x"\nuntil = 2026-12-31T10:00:00\n',
            "is not a day",
            "write until = 2026-12-31",
        ),
        (
            "[tool.profilerkit]\ngpu-hour-price = -1\n",
            "gpu-hour-price is not a price",
            "write a number",
        ),
        (
            "[tool.profilerkit]\ngpu-hour-price = true\n",
            "gpu-hour-price is not a price",
            "write a number",
        ),
        (
            "[tool.profilerkit]\ngpu-hour-price = nan\n",
            "gpu-hour-price is not a price",
            "write a number",
        ),
        ("[tool]\nprofilerkit = 3\n", "is not a table", "select"),
        ("[tool.profilerkit\n", "cannot be read", "correct the file"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file_and_a_way_out(tmp_path, text, what, hint):
    write_pyproject(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_settings({}, environment={}, start=tmp_path)
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert str(tmp_path / "pyproject.toml") in str(caught.value)


RULES = """[tool.profilerkit]
rules-path = "checks"
gpu_hour_price = 2
[tool.profilerkit.rules.IN001]
smallest-share = 0.1
[[tool.profilerkit.suppress]]
rule = "IN002"
reason = "known,   and cheap"
until = 2026-12-31
[[tool.profilerkit.suppress]]
rule = "CO"
reason = "one rank"
until = "2026-12-31"
"""


def test_rules_their_options_suppressions_and_a_price_stand_in_the_file(tmp_path):
    write_pyproject(tmp_path, RULES)
    settings = load_settings({}, environment={"PROFILERKIT_RULES": "x", "PROFILERKIT_SUPPRESS": "x"}, start=tmp_path)
    assert settings == Settings(
        rules_path="checks",
        rules_from=tmp_path / "pyproject.toml",
        gpu_hour_price=2.0,
        rules={"IN001": {"smallest_share": 0.1}},
        suppress=(
            Suppression(rule="IN002", reason="known, and cheap", until=date(2026, 12, 31)),
            Suppression(rule="CO", reason="one rank", until=date(2026, 12, 31)),
        ),
    )


def test_rules_lie_beside_the_file_that_names_them_unless_a_variable_does(tmp_path):
    write_pyproject(tmp_path, RULES)
    below = tmp_path / "below"
    below.mkdir()
    settings = load_settings({}, environment={}, start=below)
    assert (settings.rules_path, settings.rules_from) == (str(tmp_path / "checks"), tmp_path / "pyproject.toml")
    settings = load_settings({}, environment={"PROFILERKIT_RULES_PATH": "own"}, start=below)
    assert (settings.rules_path, settings.rules_from) == ("own", None)
    assert settings.rules == {"IN001": {"smallest_share": 0.1}}


def test_a_price_may_come_from_the_environment(tmp_path):
    assert load_settings({}, environment={"PROFILERKIT_GPU_HOUR_PRICE": "1.5"}, start=tmp_path).gpu_hour_price == 1.5
    with pytest.raises(ConfigError, match="PROFILERKIT_GPU_HOUR_PRICE"):
        load_settings({}, environment={"PROFILERKIT_GPU_HOUR_PRICE": "dear"}, start=tmp_path)


@pytest.mark.parametrize(
    ("flags", "environment"), [({"gpu_hour_price": "-3"}, {}), ({}, {"PROFILERKIT_GPU_HOUR_PRICE": "-3"})]
)
def test_a_wrong_price_is_answered_with_what_to_write(tmp_path, flags, environment):
    with pytest.raises(ConfigError) as caught:
        load_settings(flags, environment=environment, start=tmp_path)
    assert caught.value.hint == "write a number, for example 2.5"
    assert caught.value.what.startswith("--gpu-hour-price" if flags else "gpu-hour-price")


def test_a_wrong_environment_variable_is_named(tmp_path):
    with pytest.raises(ConfigError, match="PROFILERKIT_FAIL_ON"):
        load_settings({}, environment={"PROFILERKIT_FAIL_ON": "never"}, start=tmp_path)


def test_examples_in_the_docstrings_hold():
    result = doctest.testmod(config)
    assert result.attempted
    assert not result.failed
