"""How much of the device's work is joined to its launch."""

from profilerkit.analysis.facts import LaunchFacts
from profilerkit.api import analyze
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
