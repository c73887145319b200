"""Templates of the pages that the scripts write, with the blocks and the look of a report."""

from jinja2 import Environment, StrictUndefined

from profilerkit.report.html_blocks import bar, block, words


def environment() -> Environment:
    """Templates in which ``block`` writes a table or chart and ``bar`` a bar; everything put into them is escaped."""
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["prose"] = words
    made.filters["units"] = words
    made.globals |= {"block": block, "bar": bar}
    return made
