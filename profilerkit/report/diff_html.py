"""Diff to one HTML file that loads nothing, in the look of a report: no script at all, every figure with its table."""

from profilerkit.model.diff import Diff
from profilerkit.report.diff_tables import KERNELS
from profilerkit.report.diff_view import build
from profilerkit.report.templating import environment, page_css


def render(diff: Diff) -> str:
    """The comparison as one offline HTML document."""
    from markupsafe import Markup

    template = environment().get_template("diff.html.j2")
    # The package's own style sheet; everything else is escaped.
    return template.render(view=build(diff), kernels=KERNELS, css=Markup(page_css()))  # noqa: S704
