"""How much of the device's work is joined to its launch."""

from profilerkit.analysis.device.kernels import LaunchFacts
from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from tests.recipes import Trace, host_training


def recording():
    """A kernel with a launch, one without, a copy without, and a graph of three."""
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.kernel(1_000, 1_100, launch=(990, 995))
    trace.kernel(1_100, 1_200)
    trace.copy(1_200, 1_210)
    trace.call("cudaGraphLaunch", 1_150, 1_160, correlation=77)
    for start in (1_300, 1_400, 1_500):
        trace.kernel(start, start + 50, correlation=77)
    return trace


def test_events_without_a_launch_and_those_of_graphs_are_counted():
    assert recording().facts().launches == LaunchFacts(events=6, unlinked=2, in_graphs=3, graph_launches=1)


def test_without_device_events_there_is_nothing_to_join():
    assert host_training(3).facts().launches is None


def test_the_report_says_how_much_has_no_launch(tmp_path):
    report = analyze(recording().write(tmp_path / "trace.json"))
    signal = next(signal for signal in report.trust.signals if signal.name == "launch calls of device work")
    assert signal.state == "partial"
    assert signal.reason == (
        "2 of 6 device events have no launch call in the trace; they count in full; "
        "3 of 6 device events were launched by 1 graph launch"
    )
    assert signal.reason.split(";")[0] in report.to_html()


def multiplying(path, *, keep):
    """Eight steps of ten products whose device events stand last, in no order of time; what is not kept is left out."""
    trace, device = Trace(), []
    for step in range(8):
        at = 1_000 + 10_000 * step
        trace.step(step, at, at + 10_000)
        for index in range(10):
            start = at + 1_000 * index
            trace.op(start, start + 90, name="aten::mm", dims=[[64, 64], [64, 64]])
            trace.kernel(start + 60, start + 900, name="gemm", launch=(start + 20, start + 40))
    device = [event for event in trace.events if event["cat"] in ("kernel", "cuda_runtime")]
    host = [event for event in trace.events if event not in device]
    device.sort(key=lambda event: (int(str(event["args"]["correlation"])) * 37) % 97)
    trace.events = host + [event for number, event in enumerate(device) if keep(number, event)]
    return trace.write(path)


def test_a_file_cut_inside_the_device_events_of_all_steps_is_not_judged(tmp_path):
    path = multiplying(tmp_path / "trace.json", keep=lambda *_: True)
    assert analyze(path).verdict.bound != "inconclusive"
    text = path.read_text()
    path.write_text(text[: text.rindex('"gemm"') * 3 // 5])
    report = analyze(path)
    assert report.verdict.bound == "inconclusive"
    assert "of the device's work is missing" in report.verdict.headline
    assert not any(finding.saving for _, finding in in_order(report.outcomes))


def test_kernels_that_are_damaged_are_no_idle_time(tmp_path):
    path = multiplying(tmp_path / "trace.json", keep=lambda *_: True)
    before, *kernels = path.read_text().split('"gemm"')
    broken = [piece.replace('"dur"', '"dur', 1) if number % 10 == 0 else piece for number, piece in enumerate(kernels)]
    path.write_text('"gemm"'.join([before, *broken]))
    report = analyze(path)
    assert report.trust.dropped == 8
    assert report.verdict.bound == "inconclusive"
    assert "of the device's work is missing" in report.verdict.headline


def test_whole_files_lose_nothing_whatever_has_no_kernel(tmp_path):
    path = multiplying(tmp_path / "trace.json", keep=lambda number, event: event["cat"] != "kernel" or number % 3)
    assert analyze(path).verdict.bound != "inconclusive"
