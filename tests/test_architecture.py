"""The structure of DESIGN section 3, held by tests. Every check is also run on a planted violation."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "profilerkit"

#: Row of DESIGN section 3 by the first name below the package. A module imports only from lower rows and its own unit.
ROWS = {
    "errors": 0,
    "installed": 0,
    "units": 0,
    "programs": 0,
    "secrets": 0,
    "model": 1,
    "hardware": 2,
    "config": 2,
    "rundir": 3,
    "capture": 4,
    "trace": 4,
    "consent": 4,
    "analysis": 5,
    "formats": 6,
    "rules": 6,
    "diagnosis": 7,
    "compare": 7,
    "plugins": 7,
    "plugin": 8,
    "summaries": 7,
    "description": 8,
    "report": 8,
    "profiling": 10,
    "results": 9,
    "api": 10,
    "guide": 10,
    "experiment": 11,
    "integrations": 12,
    "cli": 12,
    "__main__": 13,
}

#: Third-party packages by unit: True where it may be imported with the module, False only inside functions.
#: The report may use msgspec, which its JSON and its view records are made of.
THIRD_PARTY = {
    "model": {"msgspec": True},
    "rundir": {"msgspec": True},
    "capture": {"torch": False, "pynvml": False, "psutil": True},
    "trace": {"numpy": True, "msgspec": True},
    "formats": {"numpy": True, "msgspec": True, "isal": True, "fsspec": False},
    "analysis": {"numpy": True, "msgspec": True},
    "hardware": {"msgspec": True},
    "diagnosis": {"msgspec": True},
    "compare": {"msgspec": True},
    "results": {"msgspec": True},
    "experiment": {"msgspec": True, "psutil": True},
    "api": {"msgspec": True},
    "rules": {"msgspec": True},
    "report": {"markupsafe": True, "numpy": False, "plotly": False, "rich": False, "msgspec": True},
    "summaries": {"numpy": True, "msgspec": True, "distributed": False},
    "cli": {"torch": False, "pynvml": False, "argcomplete": False, "rich": False}
    # What runs before a program below `profilerkit run` stands in a directory of its own.
    | {"sitecustomize": True, "wait_for_torch": False},
    # The plugin is imported by pytest alone.
    "integrations": {"transformers": False, "pytest": True},
}

# The lazy table of public names; nothing in it runs at import.
LAZY_PACKAGE = "profilerkit"
# Programs that are imported only to train with torch.
TORCH_PROGRAMS = "profilerkit.cli.demos"
# The guards, and the fetch, which hands what it caught to one: to be called through it costs too much on each step.
# Plug-ins, and file systems of other packages, fail with errors of their own.
BROAD_EXCEPT = {
    *("profilerkit.capture.guard", "profilerkit.capture.loader", "profilerkit.capture.loader_patches"),
    *("profilerkit.rules.runner", "profilerkit.plugins", "profilerkit.formats.remote", "profilerkit.formats.registry"),
}
MAX_MODULE_LINES, MAX_FUNCTION_LINES = 600, 60
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|work|Users|mnt)/\w+")


@dataclass(frozen=True)
class Module:
    name: str
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    @cached_property
    def imports(self) -> "list[Import]":
        """Every import of the module, wherever it stands; `from package import name` names `package.name`."""
        return list(imports_below(self.nodes[0], is_lazy=False))

    @cached_property
    def calls(self) -> list[tuple[str, int]]:
        return list(calls_of(self))

    @property
    def unit(self) -> str:
        return unit_of(self.name)


@dataclass(frozen=True)
class Import:
    target: str
    is_lazy: bool
    source: str = ""


def unit_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def load_package() -> dict[str, Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = [PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path.read_text(encoding="utf-8"))
    return found


MODULES = load_package()


def imports_below(node: ast.AST, *, is_lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, is_lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            source = child.module or ""
            yield from (Import(f"{source}.{alias.name}", is_lazy, source) for alias in child.names)
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(child)
        yield from imports_below(child, is_lazy=is_lazy or inside)


def imports_of(module: Module, known: dict[str, Module]) -> Iterator[Import]:
    """Every import of the module, wherever it stands; `from package import submodule` names the submodule."""
    for found in module.imports:
        is_name = found.source and found.target not in known
        yield Import(found.source, found.is_lazy) if is_name else found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def calls_of(module: Module) -> Iterator[tuple[str, int]]:
    for node in module.nodes:
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield f"raise {ast.unparse(node.exc).partition('(')[0]}", node.lineno


def layer_violations(modules: dict[str, Module]) -> list[str]:
    wrong = []
    for module in modules.values():
        if module.name == LAZY_PACKAGE:
            continue
        for found in imports_of(module, modules):
            target = found.target
            if not target.startswith("profilerkit") or target == LAZY_PACKAGE or unit_of(target) == module.unit:
                continue
            if ROWS[unit_of(target)] >= ROWS[module.unit]:
                wrong.append(f"{module.name} (row {ROWS[module.unit]}) imports {target} (row {ROWS[unit_of(target)]})")
    return wrong


def names_taken_from_the_package(modules: dict[str, Module]) -> list[str]:
    """`from profilerkit import x` goes around the rows unless x is the version or the importer is the top row."""
    wrong = []
    for module in modules.values():
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module == LAZY_PACKAGE and ROWS.get(module.unit, 99) < 11:
                names = [alias.name for alias in node.names if f"{LAZY_PACKAGE}.{alias.name}" not in modules]
                wrong += [
                    f"{module.name} imports {name} from {LAZY_PACKAGE}" for name in names if name != "__version__"
                ]
    return wrong


def cycle(modules: dict[str, Module]) -> list[str]:
    graph = {
        module.name: {
            found.target
            for found in imports_of(module, modules)
            if found.target in modules and found.target not in (module.name, LAZY_PACKAGE)
        }
        for module in modules.values()
        if module.name != LAZY_PACKAGE
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def third_party_violations(modules: dict[str, Module]) -> list[str]:
    wrong = []
    for module in modules.values():
        allowed = THIRD_PARTY.get(module.unit, {})
        for found in imports_of(module, modules):
            package = found.target.split(".")[0]
            if package == "profilerkit" or package in sys.stdlib_module_names:
                continue
            if package not in allowed:
                wrong.append(f"{module.name} imports {package}")
            elif not (allowed[package] or found.is_lazy or module.name.startswith(TORCH_PROGRAMS)):
                wrong.append(f"{module.name} imports {package} outside a function")
    return wrong


def output_violations(modules: dict[str, Module]) -> list[str]:
    exits = {"print", "exit", "quit", "sys.exit", "os._exit", "raise SystemExit"}
    streams = ("sys.stdout.", "sys.stderr.", "sys.__stdout__.", "sys.__stderr__.")
    return [
        f"{module.name}:{line} calls {call}"
        for module in modules.values()
        if module.unit not in ("cli", "__main__")
        for call, line in module.calls
        if call in exits or call.startswith(streams)
    ]


def broad_except_violations(modules: dict[str, Module]) -> list[str]:
    broad = {"Exception", "BaseException"}
    wrong = []
    for module in modules.values():
        for node in module.nodes:
            if isinstance(node, ast.ExceptHandler) and module.name not in BROAD_EXCEPT:
                names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else broad
                if names & broad:
                    wrong.append(f"{module.name}:{node.lineno}")
    return wrong


def size_violations(modules: dict[str, Module]) -> list[str]:
    wrong = []
    for module in modules.values():
        lines = module.text.count("\n")
        if lines > MAX_MODULE_LINES:
            wrong.append(f"{module.name} has {lines} lines")
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    wrong.append(f"{module.name}.{node.name} has {length} lines")
    return wrong


def name_violations(modules: dict[str, Module]) -> list[str]:
    return [name for name in modules if FORBIDDEN_NAMES & set(name.split("."))]


def private_imports(modules: dict[str, Module]) -> list[str]:
    """Names with an underscore that another module takes: what two modules use is public."""
    return [
        f"{name}: {alias.name}"
        for name, module in modules.items()
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]


def machine_paths(texts: dict[str, str]) -> list[str]:
    return [f"{name}: {found.group()}" for name, text in texts.items() for found in MACHINE_PATH.finditer(text)]


CHECKS = {
    "layers": layer_violations,
    "package": names_taken_from_the_package,
    "cycles": cycle,
    "third party": third_party_violations,
    "output": output_violations,
    "broad except": broad_except_violations,
    "size": size_violations,
    "names": name_violations,
    "private": private_imports,
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_package_keeps_its_structure(check):
    assert CHECKS[check](MODULES) == []


def test_every_unit_has_a_row():
    assert {module.unit for module in MODULES.values()} - {""} <= set(ROWS)


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        ("layers", "profilerkit.rules.x", "from profilerkit.report import html"),
        ("layers", "profilerkit.rules.x", "def f():\n    import profilerkit.report.html"),
        ("layers", "profilerkit.capture.x", "from profilerkit.trace import columns"),
        ("layers", "profilerkit.trace.x", "from profilerkit.capture import profile"),
        ("layers", "profilerkit.units", "from profilerkit.errors import UsageError"),
        ("layers", "profilerkit.model.x", "from profilerkit.report import save"),
        ("package", "profilerkit.rules.x", "from profilerkit import analyze"),
        ("cycles", "profilerkit.errors", "def f():\n    from profilerkit.model import report"),
        ("third party", "profilerkit.analysis.x", "import torch"),
        ("third party", "profilerkit.rules.x", "def f():\n    import numpy as np"),
        ("third party", "profilerkit.api", "import jinja2"),
        ("third party", "profilerkit.report.x", "import plotly.graph_objects"),
        ("third party", "profilerkit.capture.x", "if True:\n    from torch.utils import data"),
        ("output", "profilerkit.api", "print('done')"),
        ("output", "profilerkit.api", "import sys\nsys.exit(2)"),
        ("output", "profilerkit.api", "raise SystemExit(2)"),
        ("output", "profilerkit.api", "import sys\nsys.stderr.write('done')"),
        ("broad except", "profilerkit.api", "try:\n    pass\nexcept Exception:\n    pass"),
        ("broad except", "profilerkit.api", "try:\n    pass\nexcept (OSError, BaseException):\n    pass"),
        ("broad except", "profilerkit.api", "try:\n    pass\nexcept:\n    pass"),
        ("size", "profilerkit.api", "x = 1\n" * (MAX_MODULE_LINES + 1)),
        ("size", "profilerkit.api", "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES),
        ("names", "profilerkit.report.utils", ""),
        ("private", "profilerkit.report.x", "def f():\n    from profilerkit.report.html import _page"),
    ],
)
def test_a_planted_violation_is_found(check, name, text):
    planted = {**MODULES, name: Module(name, text)}
    if check == "cycles":
        planted["profilerkit.model.report"] = Module("profilerkit.model.report", "import profilerkit.errors")
    assert CHECKS[check](planted)


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        ("layers", "profilerkit.rules.x", "from profilerkit.analysis import facts"),
        ("layers", "profilerkit.rules.x", "from profilerkit.rules.y import z"),
        ("third party", "profilerkit.capture.x", "def f():\n    import torch"),
        ("third party", "profilerkit.report.x", "if TYPE_CHECKING:\n    import plotly"),
        ("broad except", "profilerkit.capture.guard", "try:\n    pass\nexcept Exception:\n    pass"),
        ("private", "profilerkit.x", "from profilerkit import __version__"),
        ("size", "profilerkit.x", "x = 1\n" * MAX_MODULE_LINES),
        ("size", "profilerkit.x", "def f():\n" + "    x = 1\n" * (MAX_FUNCTION_LINES - 1)),
    ],
)
def test_what_is_allowed_is_not_found(check, name, text):
    assert CHECKS[check]({name: Module(name, text)}) == []


def test_nothing_that_ships_names_a_machine():
    root = PACKAGE.parent
    shipped = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".toml", ".html", ".css", ".js", ".json"}]
    scripts = [path for path in (root / "scripts").iterdir() if path.is_file()]
    texts = {str(path.relative_to(root)): path.read_text("utf-8") for path in [*shipped, *scripts, root / "README.md"]}
    assert len(texts) > 20
    assert machine_paths(texts) == []
    assert machine_paths({"planted": "see /home/somebody/trace.json"})


TRACE = """{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 1000},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 100, "dur": 800},
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "pid": 1, "tid": 1, "ts": 1000, "dur": 1000},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1100, "dur": 800},
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 2000, "dur": 1000},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 2100, "dur": 800}
]}"""


def test_analyze_imports_neither_torch_nor_pandas(tmp_path):
    (tmp_path / "trace.json").write_text(TRACE, encoding="utf-8")
    program = (
        "import sys\n"
        "from profilerkit.cli import main\n"
        "code = main(['analyze', 'trace.json', '-q'])\n"
        "heavy = {'torch', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'exit code {code}, imported {heavy}' if code or heavy else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "trace.report.html").is_file()
