import socket
import sys
from typing import get_args

import msgspec
import pytest

from profilerkit import api
from profilerkit.cli import demo, main
from profilerkit.compare.steps import Resampled, Timed
from profilerkit.experiment import runs, search, trying
from profilerkit.experiment.runs import Ended, Ran, Runner
from profilerkit.model.finding import Bound, SettingChange
from profilerkit.model.report import Report
from profilerkit.results import as_report
from tests import programs
from tests.report import samples

demos = pytest.importorskip("profilerkit.cli.demos", exc_type=ImportError)


def test_the_kinds_are_listed(capsys):
    assert main(["demo", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(demo.KINDS)


def test_there_is_a_kind_for_each_bound():
    bounds = {bound for bound in get_args(Bound) if bound.endswith("-bound")}
    assert {f"{kind}-bound" for kind in demo.KINDS} == bounds


def test_every_kind_has_its_program():
    assert demos.ALONE.keys() == {name for name, kind in demo.KINDS.items() if kind.ranks == 1}
    assert demos.TOGETHER.keys() == {name for name, kind in demo.KINDS.items() if kind.ranks > 1}


def test_without_torch_the_way_to_get_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["demo"]) == 2
    assert "hint:  pip install torch" in capsys.readouterr().err


def test_a_directory_with_something_in_it_is_not_used(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["demo", "-o", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_help_names_the_code_of_a_demo_that_proves_nothing(capsys):
    for words, said in ((["--help"], "a demo proved nothing"), (["demo", "--help"], "Exit code 3 means that the runs")):
        assert main(words) == 0
        assert said in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def program(monkeypatch):
    """A demo whose runs take no time; the fix makes its steps ``factor`` times as long, or cannot be made."""
    made: list[tuple[SettingChange, ...]] = []

    def install(rule="IN001", factor=0.8, problem=""):
        sample = samples.input_bound()
        fix = msgspec.structs.replace(samples.starved().fix, changes=(SettingChange("num_workers", 2, 8),))
        starved = msgspec.structs.replace(sample.outcomes[0].findings[0], fix=fix)
        fired = msgspec.structs.replace(sample.outcomes[0], rule=rule, findings=(starved,))
        report: Report = msgspec.structs.replace(sample, outcomes=(fired,))

        def run(runner, name, changes=(), *, deep=False):
            place = runner.directory / name
            for directory in (place / "rank_00000", runner.directory / "ends" / name):
                directory.mkdir(parents=True)
            (place / "run.json").touch()
            made.append(tuple(changes))
            mean_ns = 100e6 * (factor if changes else 1.0)
            timed = Timed(*[Resampled(mean_ns, mean_ns * 0.002, 20)] * 3, 0.0, is_taken_out=True)
            why = problem if changes else ""
            return Ran(place=place, report=report, timed=timed, ended=Ended(losses=[1.0, 0.9]), problem=why)

        monkeypatch.setattr(Runner, "run", run)
        monkeypatch.setattr(api, "analyze", lambda _: as_report(report))
        return made

    return install


def test_prediction_and_measurement_stand_side_by_side(tmp_path, capsys, program):
    program()
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 0
    out, _ = capsys.readouterr()
    assert "INPUT-BOUND" in out
    row = next(line for line in out.splitlines() if line.startswith("num_workers 2 → 8  "))
    assert "−4.1 % (2.3–5.2)" in row
    assert "−20 % (" in row
    assert "same losses" in row


@pytest.mark.parametrize("faulty", [{"factor": 1.0}, {"factor": 1.2}, {"problem": "exit code 1"}, {"rule": "OV001"}])
def test_what_proves_nothing_has_a_code_of_its_own(tmp_path, capsys, program, faulty):
    program(**{"rule": "OV005", **faulty})
    assert main(["demo", "overhead", "-o", str(tmp_path / "demo")]) == 3
    said = "nothing was proven; next, when this machine is less busy: profilerkit demo overhead"
    assert capsys.readouterr().err.splitlines()[-1] == said


@pytest.mark.parametrize("kind", [name for name, kind in demo.KINDS.items() if kind.fix])
def test_a_fix_in_the_code_is_made_by_the_program_and_said_in_words(tmp_path, capsys, program, kind):
    made = program(demo.KINDS[kind].rule)
    assert main(["demo", kind, "-o", str(tmp_path / "demo")]) == 0
    assert {(one.setting, one.proposed) for changes in made for one in changes} == {("env:PROFILERKIT_DEMO", "mended")}
    out, said = capsys.readouterr()
    assert f"the fix, made in the code: {demo.KINDS[kind].fix}" in " ".join(out.split())
    assert f"the fix, made in the code: {demo.KINDS[kind].fix}" in said


@pytest.mark.parametrize(("kind", "is_noted"), [("input", False), ("comm", True)])
def test_a_verdict_other_than_the_promised_one_is_said(tmp_path, capsys, program, kind, is_noted):
    program()
    assert main(["demo", kind, "-o", str(tmp_path / "demo")]) == 0
    said = f"the fault is {kind}-bound on a quiet machine; here it was input-bound"
    assert (said in capsys.readouterr().err) == is_noted


@pytest.mark.parametrize(("options", "is_kept"), [([], False), (["--keep"], True)])
def test_recordings_are_kept_only_when_asked(tmp_path, program, options, is_kept):
    program()
    assert main(["demo", "-o", str(tmp_path / "demo"), *options]) == 0
    found = {path.relative_to(tmp_path / "demo").as_posix() for path in tmp_path.glob("demo/**/*") if path.is_file()}
    reports = {"train.py", "trial.html", "trial.json", "report.html", "report.json"}
    assert reports <= found
    assert (found == reports) != is_kept
    assert ((tmp_path / "demo" / "ends").exists(), "first/run.json" in found) == (is_kept, is_kept)


# The other kinds compute on both sides, so that a processor that is shared disturbs both: they are run by hand.
@pytest.mark.torch
def test_the_demo_measures_what_its_report_predicts(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trying, "FIRST_STEPS", 50)
    monkeypatch.setattr(trying, "FEWEST_STEPS", 30)
    monkeypatch.setattr(trying, "RUN_S", 1.0)
    monkeypatch.setattr(search, "HALF_WIDTH", 0.1)  # a busy machine takes long to tell it more closely
    monkeypatch.setattr(search, "MOST_AGAIN", 0)
    programs.warm(monkeypatch, runs)
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 0
    out, _ = capsys.readouterr()
    assert "INPUT-BOUND" in out
    trial = msgspec.json.decode((tmp_path / "demo" / "trial.json").read_bytes())
    best = trial["attempts"][0]
    assert (best["outcome"], best["numbers"]) == ("faster", "same")
    assert best["saving"]["expected"] == pytest.approx(best["predicted"]["expected"], abs=0.15)
    assert best["lines"][0]["function"] == "slow_input"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere connections cannot be paced")
def test_a_slow_link_paces_what_is_connected():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        demos.slow_links(4_000_000)
        assert sender.getsockopt(socket.SOL_SOCKET, demos.SO_MAX_PACING_RATE) == 4_000_000
