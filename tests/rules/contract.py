"""What every rule keeps, whatever it is about, as assertions about one case."""

from profilerkit.rules import RULES
from profilerkit.rules.api import SMALLEST_SAVING, Fired, MissingData, NotApplicable, Passed
from tests.recipes import STEP_NS, replace

RULE = {rule.code: rule for rule in RULES}


def fires(code, known):
    """It fires, and each finding says what was seen, what to do, and how to check it."""
    result = RULE[code].check(known)
    assert isinstance(result, Fired), result
    for found in result.findings:
        assert found.evidence
        assert all(entry.label and entry.origin and entry.unit and entry.value is not None for entry in found.evidence)
        assert found.title
        assert len(found.title.split()) <= 16, found.title
        assert found.why
        assert found.confirm
        if found.bound is not None:
            assert found.saving is not None
            assert found.fix is not None
            assert found.saving.expected >= SMALLEST_SAVING
        if found.saving is not None:
            assert 0.0 <= found.saving.low <= found.saving.expected <= found.saving.high <= 1.0


def passes(code, known):
    result = RULE[code].check(known)
    assert isinstance(result, Passed), result
    assert result.reason


def abstains(code, known):
    result = RULE[code].check(known)
    assert isinstance(result, MissingData), result
    assert result.reason
    assert result.hint


def is_not_applicable(code, known):
    result = RULE[code].check(known)
    assert isinstance(result, NotApplicable), result
    assert result.reason


def keeps_silent_within_the_noise(code, known):
    """A finding with a saving is not told where the step time is too noisy for it."""
    result = RULE[code].check(replace(known, step_error_ns=0.5 * STEP_NS))
    assert not isinstance(result, Fired) or all(found.bound is None for found in result.findings)


def options(codes):
    """Every threshold of the rules ``codes``."""
    return {(code, name) for code in codes for name in RULE[code].__struct_fields__}
