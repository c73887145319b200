"""``profilerkit watch`` beside real jobs, and on run directories in every state."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from argparse import Namespace
from fcntl import ioctl
from pathlib import Path

import pytest

import profilerkit
from profilerkit import api
from profilerkit.cli import main, watch
from profilerkit.cli.console import Console
from profilerkit.config import Settings
from profilerkit.report.live import GONE_NS, SILENT_NS
from profilerkit.rundir import follow
from profilerkit.rundir.layout import EVENT, EVENTS, MANIFEST, SAMPLES, EventFlag, EventKind, rank_directory
from profilerkit.rundir.process import this_process
from tests.recipes import Log, write_run

HOME = Path(profilerkit.__file__).parents[1]
STEP_US = 100_000

#: Steps of 10 ms until the file ``stop`` is there.
ALONE = textwrap.dedent("""
    import pathlib, sys, time
    import profilerkit

    with profilerkit.profile("run", deep=False, nvml=False, analyze=False) as prof:
        for _ in prof.wrap(range(5_000)):
            time.sleep(0.01)
            if pathlib.Path("stop").exists():
                break
""")

#: Two ranks that wait for each other in every step, until one sees the file ``stop``; rank 1 is late by its data.
TOGETHER = textwrap.dedent("""
    import pathlib, time
    import torch, torch.distributed as dist
    import profilerkit

    dist.init_process_group("gloo")
    torch.set_num_threads(1)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 5_000

        def __getitem__(self, index):
            time.sleep(0.05 if dist.get_rank() else 0.001)
            return torch.tensor(float(pathlib.Path("stop").exists()))

    with profilerkit.profile("run", deep=False, nvml=False, analyze=False) as prof:
        for batch in prof.wrap(torch.utils.data.DataLoader(Data())):
            dist.all_reduce(batch)
            if batch.item():
                break
""")


@pytest.fixture(autouse=True)
def no_lower_priority(monkeypatch):
    """It cannot be raised again, and the tests that follow want theirs."""
    monkeypatch.setattr(os, "setpriority", lambda *_: None)


@pytest.fixture
def start(tmp_path):
    """Starts a program in the test's directory; what still runs at the end is killed, with its children."""
    started = []

    def start(*words, **how):
        own = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
        variables = {
            name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "COLUMNS", "LINES")
        }
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how}
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**variables, **own, "TERM": "xterm", **settings.pop("variables", {})},
            start_new_session=True,
            **settings,
        )
        started.append(process)
        return process

    # What is started in the background of a shell ignores interrupts, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield start
    signal.signal(signal.SIGINT, before)
    (tmp_path / "stop").touch()  # torchrun's workers are in groups of their own
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def ended(process):
    """Exit code, standard output and standard error."""
    out, said = process.communicate(timeout=120)
    return process.returncode, out, said


def lines_of(watching, count):
    """What it says until so many steps were told."""
    said = ""
    while len(re.findall(r"^step ", said, re.MULTILINE)) < count:
        line = watching.stdout.readline()
        assert line, watching.communicate()[1]
        said += line
    return said


def run_at(path, *, steps=60, wait=60_000, ended=True, **how):
    return write_run(path, [Log().steps(steps, STEP_US, wait=wait)], ended=ended, **how)


# Beside real jobs


@pytest.mark.torch
def test_two_ranks_are_watched_from_before_their_start_to_their_end(tmp_path, start):
    pytest.importorskip("torch")
    watching = start("-m", "profilerkit", "watch", "run", "--every", "0.25", "--wait", "100")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    start(*torchrun, script(tmp_path, TOGETHER), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = lines_of(watching, 14)  # twice as many looks as there are writes
    (tmp_path / "stop").touch()
    code, out, said = ended(watching)
    assert code == 0, said
    out = first + out
    assert "\x1b" not in out + said
    seen = [int(found.replace(",", "")) for found in re.findall(r"^step ([\d,]+) · ", out, re.MULTILINE)]
    assert len(set(seen)) >= 5
    assert seen == sorted(seen)
    assert re.search(r"^step .* steps/s · .* · input .* · .*(?:so far|no verdict yet)$", out, re.MULTILINE)
    page = " ".join(out[out.rindex("run · ended: finished") :].split())
    assert "2 ranks" in page
    assert "INPUT-BOUND" in page
    assert int(re.search(r"Step ([\d,]+) ·", page)[1].replace(",", "")) >= seen[-1]
    assert "most on rank 1" in page
    assert re.search(r"Rank 1: .* more per step than the median rank in waits for data", page)
    assert re.search(r"CPU \d+", page)
    assert said.splitlines()[0] == "waiting for run, 100 s at most"
    assert said.splitlines()[-1] == "the run is over: finished; next: profilerkit analyze run"


def test_a_job_that_is_killed_ends_the_watch(tmp_path, start):
    job = start(script(tmp_path, ALONE))
    watching = start("-m", "profilerkit", "watch", "run", "--every", "0.25", "--wait", "60")
    lines_of(watching, 1)
    job.kill()
    job.wait()
    code, out, said = ended(watching)
    assert code == 0, said
    assert "run · ended: killed, ran for" in out
    assert "The run was killed: it left no word of its end." in " ".join(out.split())
    assert said.endswith("the run is over: killed; next: profilerkit analyze run\n")


class Terminal:
    """A terminal of so many columns and lines, and what was written to it."""

    def __init__(self, columns, lines):
        self.ours, self.theirs = pty.openpty()
        ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.text = ""

    def read_until(self, process, done):
        """Read until ``done`` says so of the text, or the process has ended and said everything."""
        deadline = time.monotonic() + 60
        while not done(self.text) and time.monotonic() < deadline:
            over = process.poll() is not None
            if select.select([self.ours], [], [], 0.1)[0]:
                self.text += os.read(self.ours, 65_536).decode("utf-8", "replace")
            elif over:
                return
        assert time.monotonic() < deadline, self.text[-2000:]

    def screen(self):
        """The lines as they stand in the end, of the commands that are used: up, to the margin, clear."""
        rows, row = [""], 0
        for piece in re.findall(r"\x1b\[\d*[A-Za-z]|\x1b\[[\d;]*m|\r|\n|[^\x1b\r\n]+", self.text):
            if piece.endswith("m") and piece.startswith("\x1b"):
                continue
            if piece.startswith("\x1b") and piece.endswith("A"):
                row -= int(piece[2:-1])
                assert row >= 0
            elif piece == "\x1b[J":
                del rows[row + 1 :]
                rows[row] = ""
            elif piece in ("\x1b[H", "\x1b[2J"):
                rows, row = [""], 0
            elif piece == "\n":
                row += 1
                rows += [""] * (row + 1 - len(rows))
            elif piece != "\r":
                assert not piece.startswith("\x1b"), piece
                rows[row] += piece
        return rows


@pytest.fixture
def terminal(request):
    found = Terminal(*getattr(request, "param", (80, 50)))
    yield found
    os.close(found.ours)
    os.close(found.theirs)


def live(start, terminal, *words, **variables):
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    command = ("-m", "profilerkit", "watch", "run", "--every", "0.25", "--wait", "60", *words)
    return start(*command, **streams, variables={"PYTHONIOENCODING": "utf-8", **variables})


@pytest.mark.parametrize("terminal", [(80, 50), (40, 60)], indirect=True, ids=["80", "40"])
def test_on_a_terminal_one_page_is_drawn_over_itself(tmp_path, start, terminal, request):
    width = request.node.callspec.params["terminal"][0]
    watching = live(start, terminal)
    start(script(tmp_path, ALONE))
    terminal.read_until(watching, lambda text: text.count("Step time") >= 4)
    (tmp_path / "stop").touch()
    terminal.read_until(watching, lambda _: False)
    assert watching.returncode == 0
    assert len(re.findall(r"\x1b\[\d+A", terminal.text)) >= 3
    assert re.search(r"\x1b\[[\d;]+m", terminal.text)
    shown = terminal.screen()
    assert max(map(len, shown[:-2])) <= width  # but for the line that names the next command
    assert sum("Step time" in row for row in shown) == 1
    assert any(row.startswith("run · ended: finished, ran for") for row in shown)
    assert "next: profilerkit analyze run" in " ".join(" ".join(shown[-4:]).split())


@pytest.mark.parametrize("terminal", [(80, 12)], indirect=True)
def test_a_page_that_does_not_fit_is_cut_until_the_end(tmp_path, start, terminal):
    watching = live(start, terminal)
    start(script(tmp_path, ALONE))
    terminal.read_until(watching, lambda text: "more lines: make the window taller" in text)
    if watching.poll() is not None:
        pytest.skip("the machine was too busy to draw a page while the run lasted")
    assert len(terminal.screen()) <= 13  # one line went before the page
    watching.send_signal(signal.SIGINT)


def test_no_colour_where_none_is_wanted(tmp_path, start, terminal):
    watching = live(start, terminal, NO_COLOR="1")
    start(script(tmp_path, ALONE))
    terminal.read_until(watching, lambda text: text.count("Step time") >= 2)
    (tmp_path / "stop").touch()
    terminal.read_until(watching, lambda _: False)
    assert "\x1b[J" in terminal.text
    assert not re.search(r"\x1b\[[\d;]*m", terminal.text)


def test_a_terminal_that_cannot_move_gets_lines(tmp_path, start, terminal):
    watching = live(start, terminal, TERM="dumb")
    start(script(tmp_path, ALONE))
    terminal.read_until(watching, lambda text: text.count("step ") >= 2)
    (tmp_path / "stop").touch()
    terminal.read_until(watching, lambda _: False)
    assert "\x1b" not in terminal.text
    assert re.search(r"^step \d", terminal.text, re.MULTILINE)


def test_interrupted_it_ends_without_a_word(tmp_path, start, terminal):
    start(script(tmp_path, ALONE))
    watching = live(start, terminal)
    terminal.read_until(watching, lambda text: "Step time" in text)
    watching.send_signal(signal.SIGINT)
    terminal.read_until(watching, lambda _: False)
    assert watching.returncode == 130
    assert "Traceback" not in terminal.text
    assert "interrupted" not in terminal.text


def test_a_stream_of_plain_ascii_gets_nothing_else(tmp_path, start):
    run_at(tmp_path / "run")
    code, out, said = ended(start("-m", "profilerkit", "watch", "run", variables={"PYTHONIOENCODING": "ascii"}))
    assert code == 0, said
    assert out.isascii()
    assert "?" not in out
    assert "INPUT-BOUND" in out


# On run directories


def test_once_prints_a_page_and_goes(tmp_path, capsys):
    run = run_at(tmp_path / "run", ended=False)
    assert main(["watch", str(run), "--once"]) == 0
    shown = capsys.readouterr()
    assert "so far" in shown.out
    assert api.analyze(run).verdict.headline in shown.out
    assert shown.err == ""


def test_a_run_that_is_over_is_shown_once(tmp_path, capsys):
    run = run_at(tmp_path / "run")
    assert main(["watch", str(run)]) == 0
    shown = capsys.readouterr()
    assert shown.out.count("Where the step goes") == 1
    assert "ended: finished" in " ".join(shown.out.split())
    assert shown.err == f"the run is over: finished; next: profilerkit analyze {run}\n"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_page_is_as_wide_as_asked(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(tmp_path)
    run_at(tmp_path / "run")
    main(["watch", "run", "-q"])
    shown = capsys.readouterr()
    assert max(map(len, shown.out.splitlines())) <= columns
    assert shown.err == ""


@pytest.mark.parametrize(("steps", "judged"), [(10, 9), (11, 10)])
def test_few_steps_give_no_verdict(tmp_path, capsys, steps, judged):
    main(["watch", str(run_at(tmp_path / "run", steps=steps)), "--once"])
    assert ("NO VERDICT · " in capsys.readouterr().out) == (judged < 10)


@pytest.mark.parametrize("cut", [1, 31])
def test_records_that_are_cut_cost_themselves(tmp_path, capsys, cut):
    run = run_at(tmp_path / "run", ended=False)
    rank = rank_directory(run, 0)
    data = (rank / EVENTS).read_bytes()
    (rank / EVENTS).write_bytes(data[: len(data) - cut])
    (rank / SAMPLES).write_bytes(b'{"t_ns":1}\n{"t_ns":')
    assert main(["watch", str(run), "--once"]) == 0
    assert re.search(r"^Step +59 ·", capsys.readouterr().out, re.MULTILINE)


def test_a_run_without_any_record_is_shown_as_such(tmp_path, capsys):
    run = write_run(tmp_path / "run", [], world_size=4)
    assert main(["watch", str(run), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "no rank yet" in " ".join(shown.split())
    assert "none recorded yet" in shown
    assert "NO VERDICT YET" in shown


def test_of_a_long_run_the_latest_steps_are_judged(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(follow, "MOST_EVENTS", 80)
    log = Log().steps(500, STEP_US, wait=1_000).steps(100, STEP_US, wait=60_000)
    run = write_run(tmp_path / "run", [log])
    assert len(EVENT.pack(0, 0, 0, 0, 0, 0)) * 80 < (rank_directory(run, 0) / EVENTS).stat().st_size
    main(["watch", str(run), "--once"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "INPUT-BOUND" in shown
    assert "After 600 steps, the latest 39 judged" in shown


def test_a_directory_that_never_comes_is_an_error(tmp_path, capsys):
    for words, said in (([], "--wait 60 waits for it"), (["--wait", "0.3"], "--wait 60 waits longer")):
        assert main(["watch", str(tmp_path / "none"), *words]) == 2
        error = capsys.readouterr().err.splitlines()[-3:]
        assert "does not exist" in error[0]
        assert [text[:6] for text in error] == ["error:", "cause:", "hint: "]
        assert said in error[2]


@pytest.mark.parametrize(("name", "said"), [("trace.json", "is a file"), ("empty", "not a run directory")])
def test_what_is_no_run_directory_is_an_error(tmp_path, capsys, name, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "trace.json").write_text("{}")
    assert main(["watch", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert ("--wait 60 waits for it" in error) == (name == "empty")
    assert "or a trace file" not in error


@pytest.mark.parametrize(
    "words", [["--every", "0.2"], ["--every", "nan"], ["--every", "soon"], ["--every", "1e9"], ["--wait", "-1"]]
)
def test_times_out_of_range_are_refused(tmp_path, capsys, words):
    assert main(["watch", str(tmp_path), *words]) == 2
    shown = capsys.readouterr().err
    assert f"error: {words[0]} is {words[1]}" in shown
    assert "it must be a number of seconds from" in shown


def test_a_rank_that_never_came_does_not_hold_the_watch(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(watch, "_STRAGGLERS_SECONDS", 0.3)
    run = run_at(tmp_path / "run", world_size=2)
    assert main(["watch", str(run), "--every", "0.25"]) == 0
    assert "1 of 2 ranks" in capsys.readouterr().out


def test_it_reads_and_writes_nothing(tmp_path, capsys):
    run = run_at(tmp_path / "run")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")}
    main(["watch", str(run)])
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in run.rglob("*")} == before


#: Reports every file that is opened for more than reading, and whatever else changes a file.
AUDITED = textwrap.dedent("""
    import os, sys

    changes = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime"}
    seen = []

    def audit(event, args):
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        if event == "open" and isinstance(args[2], int) and args[2] & writes or event in changes:
            seen.append((event, str(args[0])))

    sys.addaudithook(audit)
    if "planted" in sys.argv:
        open("planted", "w").close()
    from profilerkit.cli import main

    code = main(["watch", "run", "--every", "0.25"])
    print("CHANGED", [entry for entry in seen if entry[1] != os.devnull])
    sys.exit(code)
""")


@pytest.mark.parametrize("words", [[], ["planted"]])
def test_it_opens_nothing_for_writing(tmp_path, start, words):
    run_at(tmp_path / "run", steps=60)
    process = start("-c", AUDITED, *words, variables={"PYTHONDONTWRITEBYTECODE": "1"})
    said, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "steps" in said
    assert said.splitlines()[-1] == f"CHANGED {[('open', word) for word in words]}"


def test_a_later_run_of_the_same_name_is_told(tmp_path, capsys):
    for name in ("run", "run-2", "run-10", "run-x", "other-3"):
        run_at(tmp_path / name)
    (tmp_path / "run-11").mkdir()
    main(["watch", str(tmp_path / "run")])
    assert capsys.readouterr().err.splitlines()[-1] == f"a later run is in {tmp_path / 'run-10'}"
    main(["watch", str(tmp_path / "run-10")])
    assert "later run" not in capsys.readouterr().err


def aged(run, seconds):
    """The run with files that were last written so long ago."""
    for file in run.rglob("*"):
        os.utime(file, (time.time() - seconds,) * 2)
    return run


@pytest.mark.parametrize("words", [["--once"], ["--every", "0.25"]])
def test_a_job_of_another_host_that_writes_no_more_ends_the_watch(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr(watch, "_LISTENING_SECONDS", 0.3)
    run = aged(run_at(tmp_path / "run", ended=False), 3_600)
    assert main(["watch", str(run), *words]) == 0
    shown = capsys.readouterr()
    assert "No record for 60 min; the run may have stopped." in shown.out
    assert "silent, after running" in " ".join(shown.out.split())
    assert shown.err == f"no record for 60 min; the run may have stopped; next: profilerkit analyze {run}\n"


@pytest.mark.parametrize(("seconds", "said", "gone"), [(100, False, False), (200, True, False), (400, True, True)])
def test_how_long_nothing_is_written_before_a_job_is_taken_to_be_gone(tmp_path, capsys, seconds, said, gone):
    assert main(["watch", str(aged(run_at(tmp_path / "run", ended=False), seconds)), "--once"]) == 0
    shown = capsys.readouterr()
    assert ("No record for" in shown.out) == said
    assert ("the run may have stopped; next:" in shown.err) == gone


def test_the_times_that_help_names_are_those_that_hold(capsys):
    assert main(["watch", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"written nothing for {SILENT_NS // 60_000_000_000} minutes" in told
    assert f"ends after {GONE_NS // 60_000_000_000} minutes" in told


@pytest.mark.skipif(this_process() is None, reason="there is no /proc here")
def test_a_job_that_is_known_to_run_is_never_gone(tmp_path, capsys):
    run = aged(run_at(tmp_path / "run", ended=False, pid=os.getpid(), process=this_process()), 86_400)
    assert main(["watch", str(run), "--once"]) == 0
    shown = capsys.readouterr()
    assert "may have stopped" not in shown.out + shown.err


@pytest.mark.parametrize("words", [[], ["--once"]])
def test_a_run_that_has_its_report_is_pointed_to_it(tmp_path, capsys, words):
    run = aged(run_at(tmp_path / "run"), 10)
    (run / "report.html").touch()
    assert main(["watch", str(run), *words]) == 0
    assert capsys.readouterr().err == f"the run is over: finished; its report: {run / 'report.html'}\n"
    os.utime(run / "report.html", (time.time() - 20,) * 2)  # made while the run went on
    assert main(["watch", str(run), *words]) == 0
    assert capsys.readouterr().err == f"the run is over: finished; next: profilerkit analyze {run}\n"


@pytest.mark.skipif(this_process() is None, reason="there is no /proc here")
@pytest.mark.parametrize(("wanted", "seconds", "said"), [("True", 0, True), ("False", 0, False), ("True", 200, False)])
def test_a_report_that_is_being_written_is_not_asked_for(tmp_path, capsys, wanted, seconds, said):
    run = run_at(tmp_path / "run", pid=os.getpid(), process=this_process())
    manifest = json.loads((run / MANIFEST).read_text())
    (run / MANIFEST).write_text(json.dumps({**manifest, "settings": {"analyze": wanted}}))
    assert main(["watch", str(aged(run, seconds))]) == 0
    report = f"its report is being written to {run / 'report.html'}"
    after = report if said else f"next: profilerkit analyze {run}"
    assert capsys.readouterr().err == f"the run is over: finished; {after}\n"


def test_steps_and_verdict_outlast_records_that_hold_no_step(tmp_path, monkeypatch):
    """Of a long run the latest records are kept, and an evaluation may be all of them."""
    monkeypatch.setattr(follow, "MOST_EVENTS", 80)
    run = run_at(tmp_path / "run", ended=False)
    watched = watch._Watched(run, Settings(), Namespace(every=0.25, no_redact=True))
    before, verdict = watched.look(judge=True)
    evaluation = Log(start=60 * STEP_US)
    for number in range(100):
        evaluation.record(EventKind.WAIT, evaluation.at + number, 1, flags=EventFlag.OTHER_LOADER)
    with (rank_directory(run, 0) / EVENTS).open("ab") as events:
        events.write(evaluation.data)
    after, kept = watched.look(judge=True)
    assert (before.steps, after.steps) == (60, 60)
    assert kept.verdict == verdict.verdict
    assert after.verdict_age_ns > before.verdict_age_ns
    assert "Step 60 · no step time in the latest records" in " ".join(watched.page(after, kept, Console()).split())
