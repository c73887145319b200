"""Gates as JUnit XML, which continuous integration shows as tests: one test case per gate."""

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from profilerkit.model.gate import Gate
from profilerkit.report.inert import SENTENCE_LIMIT, inert


def render(name: str, gates: Sequence[Gate]) -> str:
    """One test suite called ``profilerkit``; a gate that could not be judged is a skipped test.

    Args:
        name: of the run or comparison, which the test cases belong to.
        gates: what was asked and found.
    """
    failed = sum(gate.status == "failed" for gate in gates)
    skipped = sum(gate.status == "not judged" for gate in gates)
    counts = f'tests="{len(gates)}" failures="{failed}" errors="0" skipped="{skipped}"'
    cases = "".join(_case(name, gate) for gate in gates)
    suite = f'  <testsuite name="profilerkit" {counts}>\n{cases}  </testsuite>\n'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {counts}>\n{suite}</testsuites>\n'


def _case(name: str, gate: Gate) -> str:
    title = quoteattr(inert(f"{gate.name}: {gate.limit}", SENTENCE_LIMIT))
    head = f"    <testcase classname={quoteattr(inert(name) or 'run')} name={title}"
    if gate.status == "passed":
        return f"{head}/>\n"
    said = inert(gate.reason, SENTENCE_LIMIT)
    found = escape(inert(f"measured: {gate.measured}", SENTENCE_LIMIT))
    kind = "failure" if gate.status == "failed" else "skipped"
    return f"{head}>\n      <{kind} message={quoteattr(said)}>{found}</{kind}>\n    </testcase>\n"
