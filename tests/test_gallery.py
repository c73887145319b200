"""``scripts/make_reports``: the committed sample reports are what today's code makes of the committed JSON."""

import base64
import gzip
import html
import json
import re
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from gallery import legend
from gallery.document import SIMULATED, contention, labelled, load, verdict_of
from gallery.pages import BENCHMARKS, INDEX, JSON_DIRECTORY, OVERHEAD
from gallery.picture import NAME as PICTURE
from gallery.recording import TRIES, record
from gallery.samples import BY_NAME, SAMPLES, VERDICTS, Sample
from overhead_benchmark.method import METHOD
from report_check.checks import MOST_BYTES, source_problems
from report_check.chromium import CHROMIUM

from profilerkit.model import revise
from profilerkit.model.finding import Bound, Confidence
from profilerkit.model.step import Family
from profilerkit.report.blocks import Tone
from tests.once import made_once
from tests.test_architecture import machine_paths

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "make_reports"
REPORTS = ROOT / "reports"
NAMES = [*(f"{name}.html" for name in BY_NAME), INDEX]
MOST_PICTURE_BYTES = 150_000
DOWNLOAD = re.compile(r"data:application/gzip;base64,([A-Za-z0-9+/=]+)\"[^>]*>[^<]*</a> <span class=\"muted\">[^<]*")


def make(*arguments, out):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments, "--out", out], capture_output=True, text=True, cwd=ROOT, check=False
    )


def unpacked(page):
    """The page with its download as text: the bytes and the size of gzip differ between versions of zlib."""
    found = DOWNLOAD.search(page)
    return page if found is None else DOWNLOAD.sub("", page) + gzip.decompress(base64.b64decode(found[1])).decode()


def committed(name):
    return (REPORTS / name).read_text("utf-8")


def document(name):
    return load((REPORTS / JSON_DIRECTORY / f"{name}.json").read_bytes())


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """All pages, made by the script from the committed JSON, in a directory of their own."""

    def render(out):
        shutil.copytree(REPORTS / JSON_DIRECTORY, out / JSON_DIRECTORY)
        for name in BENCHMARKS:
            if (REPORTS / name).exists():
                (out / name).touch()
        shutil.copy(REPORTS / "overhead.json", out)
        done = make(out=out)
        assert done.returncode == 0, done.stderr

    return made_once(tmp_path_factory, "gallery", render)


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_page_is_what_the_committed_json_gives_today(rendered, name):
    is_fresh = unpacked((rendered / name).read_text("utf-8")) == unpacked(committed(name))
    assert is_fresh, f"reports/{name} is stale: run scripts/make_reports, look at it, and commit it"


def test_every_page_and_every_recording_belongs_to_a_sample():
    assert {path.stem for path in (REPORTS / JSON_DIRECTORY).iterdir()} == set(BY_NAME)
    assert {path.name for path in REPORTS.glob("*.html")} <= {*NAMES, *BENCHMARKS}


def test_there_is_one_sample_for_each_verdict():
    bounds = [sample.says.partition(" ")[0] for sample in SAMPLES if sample.group == VERDICTS]
    assert sorted(bounds) == sorted(get_args(Bound))


@pytest.mark.parametrize("name", BY_NAME)
def test_a_sample_says_what_it_stands_for(name):
    assert verdict_of(document(name)) == BY_NAME[name].says


@pytest.mark.parametrize("name", BY_NAME)
def test_a_sample_is_labelled_and_its_labels_stay_the_same(name):
    assert labelled(BY_NAME[name], document(name)) == document(name)


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "diff"])
def test_a_run_that_never_happened_says_so_on_its_page_and_a_recording_does_not(name):
    found, page = document(name), committed(f"{name}.html")
    # The samples are recorded on a CPU: a device in one of them is the simulator's.
    assert BY_NAME[name].is_simulated == bool(found.run.devices)
    assert (SIMULATED in found.trust.notes) == BY_NAME[name].is_simulated
    assert (SIMULATED in page) == BY_NAME[name].is_simulated
    assert (f"{name}, simulated" in page) == BY_NAME[name].is_simulated


def test_the_straggler_is_named():
    assert json.loads(committed(f"{JSON_DIRECTORY}/straggler.json"))["verdict"]["rank"] == 1


def test_the_comparison_holds_a_prediction_against_what_was_measured():
    (fix, *_) = json.loads(committed(f"{JSON_DIRECTORY}/diff.json"))["fixes"]
    assert fix["predicted"] is not None


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_small_and_loads_nothing(name):
    page = committed(name)
    assert list(source_problems(page)) == []
    assert len(page.encode()) <= MOST_BYTES
    assert 'id="figure-script"' not in page


@pytest.mark.parametrize("name", BY_NAME)
def test_a_sample_names_no_machine_and_nobody(name):
    text = committed(f"{JSON_DIRECTORY}/{name}.json")
    assert machine_paths({name: text}) == []
    assert not re.search(r"(?<![\w.…])/(?:tmp|var|usr|opt|etc)/\w", text)
    assert not re.search(r"program\.py|gallery\.\w{8}|\d-\d\"", text)
    fields = json.loads(text)
    if "run" in fields:
        assert fields["run"]["redacted"]
        is_recorded = not BY_NAME[name].is_simulated
        assert fields["run"]["command"] == (f"scripts/make_reports --record {name}" if is_recorded else None)


def test_a_recording_is_made_in_a_directory_of_the_same_name_each_time(tmp_path):
    places = []

    def make(place, name):
        places.append(place)
        raise RuntimeError(f"no {name} today")

    made, said = record(Sample("sample", VERDICTS, "", "balanced", make), tmp_path / "sample.json")
    assert (made, said) == (False, "no sample today")
    assert {place.name for place in places} == {"gallery"}
    assert len({place.parent for place in places}) == TRIES
    assert not (tmp_path / "sample.json").exists()


def test_the_index_leads_to_every_page_and_says_what_is_simulated():
    index = committed(INDEX)
    links = set(re.findall(r'href="([^"#]+)"', index))
    there = {name for name in BENCHMARKS if (REPORTS / name).exists()}
    assert links == {*(f"{name}.html" for name in BY_NAME), *there}
    simulated = index.partition(">On a GPU: simulated<")[2]
    assert "Not recorded" in simulated
    assert {name for name in BY_NAME if f'href="{name}.html"' in simulated} == {"simulated_ranks"}
    assert "Simulated: a CPU has no device events." in index.partition('href="compute_bound.html"')[2][:300]


def test_the_index_says_what_colours_signs_and_confidence_words_mean():
    index = html.unescape(committed(INDEX)).replace("\N{NO-BREAK SPACE}", " ")
    about = index.partition('id="legend"')[2].partition("</section>")[0]
    assert {family for family, *_ in legend.colours()} == set(get_args(Family))
    assert {tone for tone, *_ in legend.signs()} == set(get_args(Tone))
    assert {word for word, _ in legend.confidence()} == set(get_args(Confidence))
    for *_, said in (*legend.colours(), *legend.signs(), *legend.confidence()):
        assert f"<dd>{said}</dd>" in about
    assert legend.COMPARED in about
    # The bars above name their colours at once.
    bars = index.partition('<ul class="legend"')[2].partition("</ul>")[0]
    assert [label for _, label, _ in legend.colours()] == re.findall(r"</span>([^<]+)</li>", bars)


def card(name):
    return committed(INDEX).partition(f'href="{name}.html"')[2].partition("</article>")[0]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_index_says_of_every_sample_whether_other_programs_had_the_processors(name):
    said = contention(document(name))
    assert said in html.unescape(card(name)).replace("\N{NO-BREAK SPACE}", " ")
    assert ("Not alone on the machine" in card(name)) == bool(said)


def test_what_other_programs_took_is_what_the_rule_about_it_found():
    found = document("input_bound")
    any_finding = next(finding for outcome in found.outcomes for finding in outcome.findings)
    (outcome,) = [outcome for outcome in found.outcomes if outcome.rule == "RU005"]
    others = tuple(entry for entry in found.outcomes if entry is not outcome)
    fired = revise(outcome, status="fired", findings=(revise(any_finding, title="Others take 40 % of the processors"),))
    assert contention(revise(found, outcomes=(*others, fired))) == "Others take 40 % of the processors."
    # Pressure that the rule holds to be the run's own is no other program's.
    assert contention(revise(found, outcomes=(*others, revise(outcome, status="passed", findings=())))) == ""
    assert contention(revise(found, outcomes=others)) == ""


@pytest.mark.parametrize(
    ("pressure", "said"), [(0.2, ""), (0.21, "Some task waits for a processor: 21 % of the time.")]
)
def test_a_run_too_short_for_the_rule_is_judged_by_the_pressure(pressure, said):
    found = document("inconclusive")
    samples = [
        revise(series, mean=pressure) if series.name == "host.cpu_pressure" else series for series in found.run.samples
    ]
    assert contention(revise(found, run=revise(found.run, samples=tuple(samples)))) == said


@pytest.mark.parametrize(("queued", "is_said"), [(None, False), (0.1, False), (0.11, True)])
def test_a_comparison_says_what_others_took_of_either_side(queued, is_said):
    found = document("diff")
    before, after = (revise(side, queued_ratio=value) for side, value in ((found.before, None), (found.after, queued)))
    said = contention(revise(found, before=before, after=after))
    assert bool(said) is is_said
    assert ("not measured before, 11 % of the time after" in said) is is_said


def test_the_index_says_where_figures_come_from_an_earlier_method(tmp_path):
    (tmp_path / OVERHEAD).touch()
    for method, is_said in ((METHOD, False), (METHOD - 1, True), (None, True)):
        fields = {} if method is None else {"method": method}
        (tmp_path / OVERHEAD).with_suffix(".json").write_text(json.dumps(fields), "utf-8")
        assert make(out=tmp_path).returncode == 0
        assert ("Measured by an earlier method" in (tmp_path / INDEX).read_text("utf-8")) is is_said
    is_stale = json.loads(committed("overhead.json")).get("method") != METHOD
    assert ("Measured by an earlier method" in committed(INDEX)) is is_stale


def test_a_name_that_is_no_sample_is_refused(tmp_path):
    done = make("--record", "no_such", out=tmp_path)
    assert done.returncode == 2
    assert "there is no sample no_such" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_simulated_sample_is_recorded_the_same_again(tmp_path):
    done = make("--record", "compute_bound", out=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    again, before = (
        json.loads((place / JSON_DIRECTORY / "compute_bound.json").read_text("utf-8")) for place in (tmp_path, REPORTS)
    )
    assert again["verdict"]["headline"] == before["verdict"]["headline"]
    assert again["trust"]["notes"][0] == SIMULATED
    assert {path.name for path in tmp_path.glob("*.html")} == {"compute_bound.html", INDEX}


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_sample_is_recorded_and_rendered_without_names(tmp_path):
    done = make("--record", "inconclusive", out=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / JSON_DIRECTORY / "inconclusive.json").read_text("utf-8")
    assert str(ROOT) not in text
    assert str(tmp_path.parent) not in text
    assert json.loads(text)["run"]["command"] == "scripts/make_reports --record inconclusive"
    assert "inconclusive" in (tmp_path / "inconclusive.html").read_text("utf-8")


def size_of(picture):
    assert picture.startswith(b"\x89PNG")
    return struct.unpack(">II", picture[16:24])


def test_the_readme_shows_a_small_picture_of_a_sample():
    picture = (REPORTS / PICTURE).read_bytes()
    assert len(picture) <= MOST_PICTURE_BYTES
    assert size_of(picture)[0] >= 900
    assert f"reports/{PICTURE}" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_picture_is_taken_of_what_is_rendered(rendered):
    done = make("--picture", out=rendered)
    assert done.returncode == 0, done.stderr
    picture = (rendered / PICTURE).read_bytes()
    assert len(picture) <= MOST_PICTURE_BYTES
    assert size_of(picture) == size_of((REPORTS / PICTURE).read_bytes())


def test_without_a_report_there_is_no_picture(tmp_path):
    done = make("--picture", out=tmp_path)
    assert done.returncode == 2
    assert "error: there is no picture" in done.stderr
