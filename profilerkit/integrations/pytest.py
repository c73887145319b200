"""Fail a pytest test whose training exceeds a budget: ``@pytest.mark.profilerkit(step_time="20 ms")``.

Budgets are those of ``profilerkit check``: the marker's arguments, and ``[tool.profilerkit.budgets]`` for those that it
does not name. The fixture ``profilerkit_run`` is the recording, for ``wrap``, ``step`` and ``phase`` in the test.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from profilerkit.capture.profiler import Profile
    from profilerkit.compare.gates import Limit
    from profilerkit.model.diff import Gate
    from profilerkit.model.report import Report

_MARKER, _FIXTURE = "profilerkit", "profilerkit_run"
_HELP = (
    'profilerkit(step_time="20 ms", input="20 %", findings="high"): record the test, and fail it where it exceeds one '
    "of these budgets; profilerkit check --help lists them"
)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _HELP)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a marked test the fixture, whether it asks for it or not."""
    if isinstance(item, pytest.Function) and item.get_closest_marker(_MARKER) and _FIXTURE not in item.fixturenames:
        item.fixturenames.append(_FIXTURE)


@pytest.fixture
def profilerkit_run(tmp_path: Path) -> "Profile":
    """Record this test: ``wrap``, ``step`` and ``phase`` mark what it does; its report is below ``tmp_path``."""
    import profilerkit

    return profilerkit.profile(tmp_path / "profilerkit")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record the test without its fixtures, then judge its budgets."""
    prof = getattr(item, "funcargs", {}).get(_FIXTURE)
    if prof is None:
        return (yield)
    limits = _limits(item)
    with prof:
        result = yield
    _judge(limits, prof)
    return result


def _limits(item: pytest.Item) -> "list[Limit]":
    from profilerkit.compare.gates import parse_budget
    from profilerkit.config import load_settings
    from profilerkit.errors import UsageError

    try:
        budgets = dict(load_settings({}, start=item.config.rootpath).budgets)
        for marker in reversed(list(item.iter_markers(_MARKER))):
            if marker.args:
                raise UsageError("a budget has no name", hint='write @pytest.mark.profilerkit(step_time="20 ms")')
            budgets |= marker.kwargs
        return [parse_budget(name, str(limit)) for name, limit in budgets.items()]
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)


def _judge(limits: "list[Limit]", prof: "Profile") -> None:
    from profilerkit.compare.gates import judge_budget

    if not limits:
        return
    if prof.report is None:
        pytest.fail(f"profilerkit made no report of {prof.directory}: its warnings say why", pytrace=False)
    gates = [judge_budget(limit, prof.report) for limit in limits]
    failed = [gate for gate in gates if gate.status != "passed"]
    if failed:
        pytest.fail(_failure(failed, prof.report, prof.directory), pytrace=False)


def _failure(gates: "list[Gate]", report: "Report", directory: Path | None) -> str:
    from profilerkit.model.finding import with_fixes
    from profilerkit.units import format_gain

    lines = [gate.reason if gate.status == "failed" else f"{gate.status}: {gate.reason}" for gate in gates]
    lines.append(f"{report.verdict.bound}: {report.verdict.headline}")
    best = next(iter(with_fixes(report.outcomes)), None)
    if best is not None and best.fix is not None:
        saving = best.saving
        gain = f" (saves {format_gain(saving.low, saving.high, saving.method)})" if saving else ""
        lines += [f"first fix{gain}: {best.fix.text}", *(f"    {line}" for line in best.fix.code.splitlines())]
    return "\n".join([*lines, f"report: {directory}/report.html"])
