"""Start-up: a renderer loads its library when it renders, not when it is imported; the wheel has its data."""

import subprocess
import sys
from importlib.resources import files


def test_importing_the_renderers_loads_no_heavy_library():
    code = (
        "import sys\n"
        "from profilerkit.report import html, json, markdown, terminal\n"
        "print([m for m in ('plotly', 'rich', 'numpy', 'pandas', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_markdown_and_terminal_do_not_load_plotly():
    code = (
        "import sys\n"
        "from tests.report.samples import input_bound\n"
        "from profilerkit.report import html, markdown, terminal\n"
        "report = input_bound()\n"
        "markdown.render(report), terminal.render(report), html.render_verdict(report)\n"
        "html.render(report)\n"
        "print('plotly' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_templates_and_schema_are_package_data():
    package = files("profilerkit.report")
    names = {item.name for item in package.joinpath("templates").iterdir()}
    assert {"first.css", "report.css", "report.js"} <= names
    assert package.joinpath("schema.json").is_file()
