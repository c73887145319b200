"""What trackers are told of a report: their real libraries where installed, else their documented methods."""

import inspect
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from profilerkit.integrations import mlflow, scalars, tensorboard, wandb
from profilerkit.model import revise
from tests.report.samples import SAMPLES

SECRET = "/data/team/undisclosed/net/train.py"
NUMBERS = {
    "profilerkit/step_time_median_ms": pytest.approx(176, rel=0.05),
    "profilerkit/share/input.prep": pytest.approx(0.194, abs=0.01),
    "profilerkit/expected_saving": pytest.approx(0.193),
}


def pointing_somewhere():
    report = SAMPLES["input_bound"]()
    return revise(
        report,
        run=revise(report.run, command=f"train.py {SECRET}"),
        verdict=revise(report.verdict, headline=f"Training waits for {SECRET}"),
    )


def numbers_of(found):
    return {name: found[name] for name in NUMBERS}


def test_shares_sum_to_one_and_what_was_not_measured_is_left_out():
    found = scalars(SAMPLES["input_bound"]())
    assert sum(value for name, value in found.items() if "/share/" in name) == pytest.approx(1.0)
    report = SAMPLES["input_bound"]()
    bare = revise(
        report, breakdown=(), steps=revise(report.steps, time_ns=None), verdict=revise(report.verdict, saving=None)
    )
    assert scalars(bare) == {}


def test_no_library_is_imported():
    program = (
        "import sys; from profilerkit.integrations import mlflow, tensorboard, wandb\n"
        "loaded = {'torch', 'tensorboard', 'tensorboardX', 'numpy', 'plotly', 'jinja2'} & set(sys.modules)\n"
        "loaded |= {name for name in ('mlflow', 'wandb') if name in sys.modules}\n"
        "sys.exit(str(loaded) if loaded else 0)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


class Writer:
    """The two methods of a SummaryWriter, as PyTorch documents them."""

    def __init__(self):
        self.scalars, self.texts = {}, {}

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.scalars[tag] = (scalar_value, global_step)

    def add_text(self, tag, text_string, global_step=None):
        self.texts[tag] = (text_string, global_step)


def test_tensorboard_gets_scalars_and_markdown():
    writer = Writer()
    tensorboard.log_report(pointing_somewhere(), writer, 12)
    assert numbers_of({name: value for name, (value, _) in writer.scalars.items()}) == NUMBERS
    text, step = writer.texts["profilerkit/report"]
    assert (step, {at for _, at in writer.scalars.values()}) == (12, {12})
    assert "…/net/train.py" in text
    assert "undisclosed" not in text
    tensorboard.log_report(pointing_somewhere(), writer, redact=False)
    assert "undisclosed" in writer.texts["profilerkit/report"][0]


def test_tensorboard_reads_back_what_a_real_writer_wrote(tmp_path):
    writers = pytest.importorskip("tensorboardX")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        tensorboard.log_report(pointing_somewhere(), writer, 3)
    read = events.EventAccumulator(str(tmp_path), {"tensors": 0, "scalars": 0}).Reload()
    assert numbers_of({tag: read.Scalars(tag)[0].value for tag in read.Tags()["scalars"]}) == NUMBERS
    (tag,) = read.Tags()["tensors"]
    assert "…/net/train.py" in read.Tensors(tag)[0].tensor_proto.string_val[0].decode()


class Run:
    """What of a run of Weights & Biases is used, as its reference documents it."""

    id = "abc123"

    def __init__(self):
        self.summary, self.kept = {}, {}

    def log_artifact(self, artifact_or_path, name=None, type=None, aliases=None, tags=None):  # noqa: A002  theirs
        self.named = (name, type)
        self.kept = {path.name: path.read_text("utf-8") for path in Path(artifact_or_path).iterdir()}


def test_wandb_gets_a_summary_and_one_artifact():
    run = Run()
    wandb.log_report(pointing_somewhere(), run)
    assert numbers_of(run.summary) == NUMBERS
    assert run.named == ("profilerkit-abc123", "profilerkit-report")
    assert set(run.kept) == {"report.html", "report.md", "report.json"}
    assert all("…/net/train.py" in text and "undisclosed" not in text for text in run.kept.values())
    wandb.log_report(pointing_somewhere(), run, redact=False)
    assert all("undisclosed" in text for text in run.kept.values())


def test_wandb_takes_it_offline(tmp_path, monkeypatch):
    library = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    with library.init(mode="offline", project="test", dir=str(tmp_path)) as run:
        wandb.log_report(pointing_somewhere(), run)
        assert numbers_of(dict(run.summary)) == NUMBERS
    assert b"profilerkit-report" in next(tmp_path.rglob("*.wandb")).read_bytes()
    assert any(b"<!doctype html>" in path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())


def test_mlflow_gets_metrics_and_documents():
    client = Mock(spec=["log_metric", "log_text"])
    mlflow.log_report(pointing_somewhere(), client, "run1")
    assert numbers_of({call.args[1]: call.args[2] for call in client.log_metric.call_args_list}) == NUMBERS
    documents = {call.args[2]: call.args[1] for call in client.log_text.call_args_list}
    assert set(documents) == {f"profilerkit/report.{ending}" for ending in ("html", "md", "json")}
    assert all("…/net/train.py" in text and "undisclosed" not in text for text in documents.values())
    assert {call.args[0] for call in (*client.log_metric.call_args_list, *client.log_text.call_args_list)} == {"run1"}


def test_mlflow_reads_back_what_a_real_client_wrote(tmp_path, monkeypatch):
    library = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = library.MlflowClient(tracking_uri=tmp_path.as_uri())
    run = client.create_run(client.create_experiment("test"))
    mlflow.log_report(pointing_somewhere(), client, run.info.run_id)
    assert numbers_of(client.get_run(run.info.run_id).data.metrics) == NUMBERS
    names = {Path(found.path).name for found in client.list_artifacts(run.info.run_id, "profilerkit")}
    assert names == {"report.html", "report.md", "report.json"}


@pytest.mark.parametrize("module", [mlflow, tensorboard, wandb])
def test_each_is_one_function(module):
    public = {
        name for name, item in vars(module).items() if inspect.isfunction(item) and item.__module__ == module.__name__
    }
    assert public == {"log_report"}
