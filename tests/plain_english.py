"""Check that a text is plain English: sentence length, words to avoid, and a verb at the start.

A test collects texts and asserts that none has a fault, for example over every string of one folder:

    from tests.plain_english import faults, strings_of
    assert [fault for path in FOLDER.glob("*.py") for text in strings_of(path) for fault in faults(text)] == []

``strings_of`` yields the strings of a source file that read as prose, ``errors_of`` those of errors alone,
``docstrings_of`` the public docstrings (``faults(text, verb_first=True)``), ``paragraphs_of`` those of a Markdown page.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_WORDS = 25

#: What the project does not write, and what it writes instead.
AVOID = {
    r"tells?|told|telling": "show, report, print",
    r"st(?:ands?|ood) for": "mean, represent, be",
    r"lies?|lain": "is",
    r"kn(?:ows?|own|ew) of": "name the thing that is known",
    r"accidents?": "chance",
    r"in the open": "exposed, not overlapped",
    r"runs? dry": "is idle",
    r"hides?": "overlaps",
    r"wires?": "link, network",
    r"crowds?": "ranks, scale",
    r"ledgers?": "breakdown",
    r"wast(?:e[sd]?|ing)": "loses, loss",
    r"behind": "after, below, later than",
    r"leaves": "keeps, makes",
    r"heard|stated|foreign": "name what happens",
    r"its like|all else|so many|in the mean|of unlike length": "name the thing",
    r"may indicate": "say what is seen, and how sure",
}
_AVOIDED = [(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), instead) for words, instead in AVOID.items()]

#: First words of docstrings and help; a verb that is not here is added here.
_VERBS = """
add allow analyze append apply ask assert attach begin break build call cap change check choose close collect combine
compare compress compute connect continue convert copy count create cut decide declare define decorate delete describe
disable draw drop enable end enter estimate exit explain export fail fetch fill find finish fit fold follow format
gather get give group guess hold identify ignore import include infer install instrument join keep label leave limit
link list load log look make map mark match measure merge move name normalize open order parse pass patch pick place
plan predict prepare print produce profile propose publish put raise rank read record redact reduce refuse register
reject remove render repeat replace report require resample reset resolve restore return round run sample save scan
score search see select send set show signal simulate skip sort split start step stop store sum summarise summarize
suppress switch test time trace train turn unwrap update use validate verify wait walk warn watch widen wrap write
yield
"""
VERBS = frozenset(_VERBS.split())


@dataclass(frozen=True)
class Text:
    """One text and where it stands; ``where`` begins every fault."""

    where: str
    text: str


def faults(text: Text, *, verb_first: bool = False) -> list[str]:
    """Return what is wrong with a text, one line for each fault; empty when nothing is."""
    found = []
    for sentence in sentences(text.text):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > MOST_WORDS:
            found.append(f"{text.where}: {len(words)} words: {sentence}")
        for avoided, instead in _AVOIDED:
            if match := avoided.search(sentence):
                found.append(f"{text.where}: {match.group()!r}, write: {instead}: {sentence}")
        if re.match(r"Of\b", sentence):
            found.append(f"{text.where}: begins with 'Of': {sentence}")
        if re.search(r"\w!(?:\s|$)", sentence):
            found.append(f"{text.where}: exclamation mark: {sentence}")
    if verb_first and (first := re.match(r"\W*([\w-]+)", text.text)) and first.group(1).lower() not in VERBS:
        found.append(f"{text.where}: begins with {first.group(1)!r}, not with a verb: {text.text.strip()[:80]}")
    return found


#: A line that begins something new: an item of a list, an argument of a docstring, a heading.
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.|#+|[\w.*`\"-]+(?:, [\w`\"]+)*:(?:\s|$)|\w+(?:, \w+)* +\([^)]*\):)\s*")
#: A row of aligned columns: two blanks or more before it and inside it.
_ROW = re.compile(r" {2,}\S(?:.*\S)?\s{2,}(?=\S)")


def sentences(text: str) -> list[str]:
    """Return the sentences of a text; a code span counts as one word, and an indented example as its comment.

    >>> sentences("Run it. See `a b c`.\\n\\n  profilerkit run train.py    record it\\n\\n- one\\n- two\\n")
    ['Run it', 'See CODE', 'record it', 'one', 'two']
    """
    text = re.sub(r"``.+?``|`[^`\n]+`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    pieces: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        is_example = lines[0] == "examples:" or all(line.startswith("  ") for line in lines)
        pieces.append("")
        for line in lines:
            if row := _ROW.match(line):
                pieces += [line[row.end() :], ""]
            elif is_example:
                continue
            elif line.lstrip().startswith("|"):
                pieces += [*line.strip().strip("|").split("|"), ""]
            elif item := _ITEM.match(line):
                pieces.append(line[item.end() :])
            else:
                pieces[-1] += f" {line.strip()}"
    found = [part for piece in pieces for part in re.split(r"(?<=[.!?])[)\"'*]*\s+", piece)]
    return [" ".join(part.split()).rstrip(".") for part in found if re.search(r"\w", part)]


def paragraphs_of(page: Path) -> Iterator[Text]:
    """Yield the paragraphs of a Markdown page, without its code."""
    plain = re.sub(r"^(```|~~~).*?^\1$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    yield from (Text(page.name, part) for part in plain.split("\n\n") if part.strip())


def strings_of(path: Path) -> Iterator[Text]:
    """Yield the strings of a source file that read as prose: two words or more, no docstring, no code."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    yield from _texts(tree, path, docstrings)


def errors_of(path: Path) -> Iterator[Text]:
    """Yield the strings that a source file gives to errors and to functions whose name says that they make one."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and re.search(r"(?:Error|unknown_word)$", ast.unparse(node.func)):
            yield from _texts(node, path, set())


def docstrings_of(path: Path) -> Iterator[Text]:
    """Yield the docstrings of a module and of its public classes, methods and functions."""
    yield from _docstrings(ast.parse(path.read_text("utf-8")), path)


def _docstrings(node: ast.AST, path: Path) -> Iterator[Text]:
    if text := ast.get_docstring(node):
        yield Text(f"{path.name}:{getattr(node, 'lineno', 1)}", text)
    for child in getattr(node, "body", ()):
        is_public = isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_")
        if is_public and not isinstance(node, ast.FunctionDef):
            yield from _docstrings(child, path)


def _texts(tree: ast.AST, path: Path, left_out: set[int]) -> Iterator[Text]:
    inside = set(left_out)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values if isinstance(part, ast.Constant)}
            text = "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value
        else:
            continue
        if re.search(r"[A-Za-z]\S* +\w", text):
            yield Text(f"{path.name}:{node.lineno}", text)
