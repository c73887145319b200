"""Write changes worth keeping as a patch of the user's source: a keyword of a call, or a line after the imports.

What cannot be written for certain is refused with the reason. Nothing is written into the user's files.
"""

import ast
import difflib
import io
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from profilerkit.capture.changes import Setting
from profilerkit.model.finding import CodeLine, SettingChange
from profilerkit.model.trial import Attempt
from profilerkit.rundir.files import read_regular

_MOST_BYTES = 4 * 1024 * 1024  #: no file that a person wrote has more
_OPTIMIZER, _OPTIMIZERS = "optimizer", "torch.optim."  #: what a setting's ``call`` names the classes of this module by
#: Arguments before one that can also be given by position (torch 1.13 to 2.11); others of our settings cannot.
_BEFORE = {
    **{"num_workers": 5, "pin_memory": 7},
    **{"bucket_cap_mb": 7, "find_unused_parameters": 8, "gradient_as_bucket_view": 10, "static_graph": 11},
    "set_to_none": 0,
}
#: Keywords that a call may not have beside one of ours, or beside some values of it.
_EXCLUDES = {"fused": ("foreach",), "foreach": ("fused",)}
_AFTER_ARGUMENTS = re.compile(r"#.*|[(),]")
_WITHOUT_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context")


class _RefusedError(Exception):
    """Why a change is not in the patch: its text ends a sentence."""


def patch_of(
    attempts: Iterable[Attempt], settings: Mapping[str, Setting], directory: Path, script: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Return a unified diff with the changes of the attempts, and a sentence for each change that it leaves out.

    Args:
        attempts: what is kept. Their ``lines`` name files as Python does: relative to ``directory``, or absolute.
        settings: how each setting is written.
        directory: where the program was started, and where the patch is to be applied.
        script: the file that is run, for settings of the whole process; empty where it is not known.
    """
    files: dict[str, _File] = {}
    notes = []
    for attempt in attempts:
        calls = {found.call for change in attempt.changes if (found := settings.get(change.setting)) and found.call}
        for change in attempt.changes:
            try:
                found = settings.get(change.setting)
                if found is None or not (found.call or found.statement):
                    pasted = ", so use the code to paste" if attempt.code else ""
                    raise _RefusedError(f"it has no one place in the source{pasted}")
                wanted = [line.file for line in attempt.lines] if found.call else [script]
                files |= {name: _File(name, directory) for name in wanted if name not in files}
                if found.call:
                    _add_keyword(change, attempt.lines, found.call, calls, files)
                else:
                    files[script].add_statement(found.statement.format(change.proposed))
            except _RefusedError as reason:
                notes.append(f"Not in the patch: {change.text}. Reason: {reason}.")
    return "".join(file.diff() for file in files.values()), tuple(dict.fromkeys(notes))


def _add_keyword(
    change: SettingChange, lines: Sequence[CodeLine], name: str, names: Collection[str], files: "Mapping[str, _File]"
) -> None:
    """Add it to each call; an attempt has the lines of the calls of all its changes. Raises ``_RefusedError``."""
    found = []
    for line in lines:
        file = files[line.file]
        if not any(file.calls(known, line.line) for known in names):
            raise _RefusedError(f"{file.name}:{line.line} has no single call of {' or '.join(sorted(names))}")
        found += [(file, call) for call in file.calls(name, line.line)]
    if not found:
        raise _RefusedError(f"no line with a call of {name} is known")
    for file, call in found:
        has_none = change.setting == "num_workers" and not change.proposed
        file.require_free(call, change.setting, _WITHOUT_WORKERS if has_none else ())
    for file, call in found:
        file.keywords.setdefault(call, {})[change.setting] = repr(change.proposed)


class _File:
    """A file of the user's source, and what is to be different about it."""

    def __init__(self, file: str, directory: Path) -> None:
        """Read and parse it. Raises ``_RefusedError``."""
        self.keywords: dict[ast.Call, dict[str, str]] = {}
        self._statements: list[str] = []
        root = Path(os.path.realpath(directory))
        try:
            path = Path(os.path.realpath((root / file).parent), Path(file).name)
            is_below = bool(file) and path.is_relative_to(root) and "site-packages" not in path.parts
            self.name = path.relative_to(root).as_posix() if is_below else path.name
            if not is_below:
                raise _RefusedError(f"{self.name} is not in the working directory" if file else "no script is known")
            if not self.name.isprintable() or set(self.name) & set('"\\'):
                raise _RefusedError("a patch cannot name its file")
            self._text = read_regular(path, _MOST_BYTES).decode("utf-8")
            self._tree = ast.parse(self._text)
        except OSError as error:
            raise _RefusedError(f"{self.name} cannot be read: {error.strerror}") from error
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise _RefusedError(f"{Path(file).name} is not Python in UTF-8") from error
        self._lines = _lines(self._text)
        if "\r" in self._text.replace("\r\n", ""):
            raise _RefusedError(f"{self.name} has line ends of its own")
        self._starts = [0, *accumulate(map(len, self._lines))]
        self._names = dict(_imported(ast.walk(self._tree)))

    def calls(self, name: str, line: int) -> list[ast.Call]:
        """Return the call of this name in a line; none where there are several, which cannot be told apart."""
        calls = (node for node in ast.walk(self._tree) if isinstance(node, ast.Call))
        found = [call for call in calls if line in (call.lineno, call.func.end_lineno) and self._is_of(name, call.func)]
        return found if len(found) == 1 else []

    def _is_of(self, name: str, function: ast.expr) -> bool:
        first, *rest = ast.unparse(function).split(".")
        whole = ".".join((self._names.get(first, first), *rest))
        return whole.startswith(_OPTIMIZERS) if name == _OPTIMIZER else whole.rpartition(".")[2] == name

    def require_free(self, call: ast.Call, keyword: str, excluded: Collection[str]) -> None:
        """Raise ``_RefusedError`` where the call may have the argument in another way than as this keyword.

        Or where it has an excluded one beside it.
        """
        place = f"{self.name}:{call.lineno}"
        names = [each.arg for each in call.keywords]
        if other := next((name for name in (*excluded, *_EXCLUDES.get(keyword, ())) if name in names), ""):
            raise _RefusedError(f"{place} has `{other}` beside it")
        if keyword in names:
            return
        packed = [each for each in (*call.args, *call.keywords) if isinstance(each, ast.Starred)]
        if packed or None in names:
            raise _RefusedError(f"{place} passes `*` or `**` arguments, which may hold it")
        if len(call.args) > _BEFORE.get(keyword, len(call.args)):
            raise _RefusedError(f"{place} passes it by position")
        if any(isinstance(each, ast.GeneratorExp) for each in call.args) and len(call.args) + len(names) == 1:
            raise _RefusedError(f"{place} passes a bare generator")

    def add_statement(self, statement: str) -> None:
        """Write a line after the last import of torch at the top. Raises ``_RefusedError``."""
        known = dict(_heads(self._tree))
        for head, _ in _heads(ast.parse(statement)):
            if head in known:
                raise _RefusedError(f"{self.name}:{known[head]} has `{head}` already: change it there")
        self._last_import()
        self._statements.append(statement)

    def _last_import(self) -> int:
        """Line in which the last import of torch ends, and all other statements that begin there."""
        ends = [node.end_lineno for node in self._tree.body if any(_is_torch(name) for _, name in _imported([node]))]
        if not ends:
            raise _RefusedError(f"{self.name} does not import torch at its top")
        return max(node.end_lineno or 0 for node in self._tree.body if node.lineno <= (ends[-1] or 0))

    def diff(self) -> str:
        """Return what is different as a unified diff; empty where nothing is."""
        edits = [edit for call, values in self.keywords.items() for edit in self._edits(call, values)]
        if self._statements:
            edits.append(self._after_imports())
        text = self._text
        for start, end, put in sorted(edits, reverse=True):
            text = text[:start] + put + text[end:]
        name = f"{self.name}\t" if " " in self.name else self.name
        found = difflib.unified_diff(self._lines, _lines(text), f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)

    def _edits(self, call: ast.Call, values: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
        """Start, end and the new text of each piece of a call: values of its keywords, and keywords before its end."""
        known = {each.arg: each.value for each in call.keywords}
        for name in values.keys() & known.keys():
            yield (*self._span(known[name]), values[name])
        added = ", ".join(f"{name}={value}" for name, value in values.items() if name not in known)
        if not added:
            return
        values_and_function = (call.func, *call.args, *(each.value for each in call.keywords))
        last, after = "", max(self._span(each)[1] for each in values_and_function)
        # Before the closing bracket comes an argument, brackets around it, its comma, or the opening bracket.
        for found in _AFTER_ARGUMENTS.finditer(self._text, after, self._span(call)[1] - 1):
            last, after = (found[0], found.end()) if found[0] in "()," else (last, after)
        yield after, after, added if last == "(" else f" {added}," if last == "," else f", {added}"

    def _span(self, node: ast.expr) -> tuple[int, int]:
        """Where it starts and ends, in characters: columns of the parser are in bytes."""
        ends = ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        start, end = (
            self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode()) for line, column in ends
        )
        return start, end

    def _after_imports(self) -> tuple[int, int, str]:
        line = self._last_import()
        newline = "\r\n" if self._lines[line - 1].endswith("\r\n") else "\n"
        bound = {name for name, _ in _imported(node for node in self._tree.body if node.lineno <= line)}
        statements = [*(["import torch"] if "torch" not in bound else []), *self._statements]
        put = "".join(f"{text}{newline}" for text in statements)
        at = self._starts[line]
        return at, at, put if self._lines[line - 1].endswith("\n") else f"{newline}{put}"


def _lines(text: str) -> list[str]:
    """The lines with their ends, as Python and patches number them."""
    return io.StringIO(text, newline="\n").readlines()


def _imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Names that imports bind, and what by."""
    for node in nodes:
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if isinstance(node, ast.ImportFrom):
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
            else:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first


def _is_torch(name: str) -> bool:
    return name.partition(".")[0] == "torch"


def _heads(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is called or set, and in which line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno
        for target in node.targets if isinstance(node, ast.Assign) else ():
            yield ast.unparse(target), target.lineno
