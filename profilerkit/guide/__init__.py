"""Hold the guide: one Markdown page for each topic, shown by ``profilerkit guide``."""

from importlib.resources import files

#: Topics in the order in which a newcomer reads them; each is the Markdown file of its name.
TOPICS = (
    *("first-hour", "questions", "recording", "reading", "try", "traces", "ranks", "gpu", "notebooks", "frameworks"),
    *("clusters", "ci", "settings", "rules", "formats", "savings", "security", "api", "architecture", "benchmarks"),
)


def page(topic: str) -> str:
    """Return the Markdown of a topic: its title, one line that says what it is for, then the rest."""
    return files(__name__).joinpath(f"{topic}.md").read_text("utf-8")


def summary(topic: str) -> str:
    """Return the line below the title, without its full stop."""
    return page(topic).split("\n\n")[1].replace("\n", " ").rstrip(".")
