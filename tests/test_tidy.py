"""Structure as a test: who may know whom, no circles, nothing unused, and texts that say what is so."""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mlfs.follow.score import Score
from mountd.statistics import MountStatistics

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*ROOT.glob("mlfs/**/*.py"), *ROOT.glob("mountd/**/*.py"), *ROOT.glob("scripts/**/*.py")])
TESTS = sorted(ROOT.glob("tests/**/*.py"))

# A module that only tests import -> why it is there all the same.
ONLY_TESTS_IMPORT = {
    "mlfs.peers.memory": "the twin of mlfs.peers.mpi, on which tests and scripts/soak run agents in simulated time",
}
# Fields of other libraries' objects that have the name of one of ours.
FIELDS_OF_LIBRARIES = {"state"}  # of numpy's bit generators
# How docstrings name a part of the house.
PARTS = {
    "the daemon": "mountd",
    "the request handlers": "mountd.handlers",
    "the channel": "mountd.channel_pyfuse3",
    "the control file": "mountd.control",
    "the engine": "mlfs.engine",
    "the simulator": "mlfs.lab.sim",
    "the policies": "mlfs.lab.policies",
    "the command line": "mlfs.cli",
    "the samplers": "mlfs.orders",
    "the layouts": "mlfs.orders.layouts",
}
CALLERS = re.compile(
    r"\b(?:called|used|run|read|written|imported|driven) (?:only )?by ((?:[^.;]|\.(?=\w))*)", re.IGNORECASE
)
UNTIL = re.compile(r"\b(?:before|after|when|while|if)\b")  # what follows is no caller
CALLER = re.compile(
    r"`mlfs (?P<command>\w+)[^`]*`|(?P<dotted>\b(?:mlfs|mountd)(?:\.\w+)+|`mountd`)|(?P<script>\bscripts/[\w/]+\.py)"
    rf"|`(?P<beside>\w+)`|(?P<part>{'|'.join(PARTS)})\b"
)


def name_of(path: Path) -> str:
    """The dotted name of a module; that of a package for its __init__."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path for path in SOURCES if path.is_relative_to(ROOT / "mlfs") or path.parent.name == "mountd"
}


@cache
def tree_of(path: Path) -> ast.Module:
    """A file as Python reads it. Most checks look at all files, and to read them takes longer than to look."""
    gc.disable()  # all trees stay, and to look for garbage among them again and again took three quarters of the time
    try:
        return ast.parse(path.read_text())
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All that a file is made of."""
    return tuple(ast.walk(tree_of(path)))


@cache
def imports_of(path: Path) -> frozenset[str]:
    """What a file imports, wherever it does (in functions and for type checkers too), by the name of the module."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & MODULES.keys()
            if inner - MODULES.keys():
                found.add(str(node.module))
    return frozenset(found)


@cache
def named_in(path: Path) -> frozenset[str]:
    """Modules whose names stand in a file as strings, by which they are loaded: "mlfs.orders.dali:DaliOrder"."""
    strings = (node.value for node in nodes_of(path) if isinstance(node, ast.Constant))
    return frozenset(text.partition(":")[0] for text in strings if isinstance(text, str)) & MODULES.keys()


def within(name: str, part: str) -> bool:
    """Whether a dotted name is that of the part or lies in it."""
    return name == part or name.startswith(part + ".")


# -- files and texts


def test_modules_say_their_job() -> None:
    silent = [path for path in [*SOURCES, *TESTS] if tree_of(path).body and not ast.get_docstring(tree_of(path))]
    assert silent == [], "a module's docstring says its job"


def test_what_texts_refer_to_is_there() -> None:
    """Documents and modules named in documents, docstrings and comments."""
    named = re.compile(r"(?<![\w/.])(?:docs|mlfs|mountd|scripts|tests)/[\w/.-]+\.(?:md|py|toml)\b|\b[A-Z]+\.md\b")
    for path in [*SOURCES, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for name in named.findall(path.read_text()):
            assert (ROOT / name).exists() or (path.parent / name).exists(), f"{path.relative_to(ROOT)}: {name}"


def test_modules_that_texts_name_are_there() -> None:
    """`mlfs.plan.owners`, or a name in it: in documents, docstrings, comments and code."""
    named = re.compile(r"(?<![\w/.\"'])(?:mlfs|mountd)(?:\.\w+)+")
    for path in [*SOURCES, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for name in set(named.findall(path.read_text())) - MODULES.keys():
            module, _, inner = name.rpartition(".")
            while module not in MODULES and "." in module:
                module, _, inner = module.rpartition(".")
            there = re.search(rf"\b{inner}\b", MODULES[module].read_text())
            assert there, f"{path.relative_to(ROOT)} names {name}"


def test_a_public_class_has_its_name_for_itself() -> None:
    """A word has one meaning: whoever looks for a class by its name finds one."""
    modules = Counter(
        node.name
        for path in set(MODULES.values())
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in modules.items() if count > 1] == []


def functions_of(path: Path) -> set[str]:
    """Names of a module's functions, and of its classes' methods."""
    tree = tree_of(path)
    scopes = [("", tree), *((f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef))]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {scope + node.name for scope, of in scopes for node in of.body if isinstance(node, kinds)}


def test_walks_go_through_functions_that_are_there() -> None:
    """In docs/architecture.md: "`file`: `function`", and methods of that file behind it."""
    text = (ROOT / "docs/architecture.md").read_text().partition("\n## Walks\n")[2].partition("\n## ")[0]
    there: set[str] = set()
    steps = re.findall(r"`([\w/]+\.py)`:\s+`([\w.]+)`|`([A-Z]\w+\.\w+)`", text)
    for path, function, method in steps:
        there = functions_of(ROOT / path) if path else there
        assert (function or method) in there, f"{function or method} is not in the file named before it"
    assert len(steps) > 30


def test_links_between_pages_lead_to_pages_and_headings() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            name, _, heading = link.partition("#")
            there = page.parent / name if name else page
            assert "://" in link or there.exists(), f"{page.relative_to(ROOT)}: {link}"
            if heading and "://" not in link:
                headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
                assert heading in {anchor_of(title) for title in headings}, f"{page.relative_to(ROOT)}: {link}"


def test_another_page_leads_to_each_page() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    led_to = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in pages
        for link in re.findall(r"\]\(([^)\s:]+\.md[^)\s]*)\)", page.read_text())
        if (page.parent / link.partition("#")[0]).resolve() != page
    }
    assert set(ROOT.glob("docs/*.md")) - led_to == set()


def anchor_of(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


# -- who knows whom


def table_of_acquaintances() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """From docs/architecture.md: part of the tree -> what it may import of ours, and of others' libraries."""
    text = (ROOT / "docs/architecture.md").read_text().partition("\n## Who may know whom\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    table = {}
    for parts, _, ours, others in rows[2:]:
        known = frozenset(name.replace("/", ".") for name in re.findall(r"`([\w/.]+)`", ours))
        for part in re.findall(r"`([\w/]+)`", parts):
            table[part] = known, frozenset(re.findall(r"`(\w+)`", others))
    return table


def test_every_file_has_its_row_in_the_table_and_every_row_its_files() -> None:
    table = table_of_acquaintances()
    for part in table:
        assert (ROOT / part).exists() or (ROOT / f"{part}.py").exists(), f"the table names {part}"
    for name, path in MODULES.items():
        assert name == "mlfs" or _row_of(path, table), f"{name} is in no row of the table"


def test_nobody_knows_more_than_the_table_allows() -> None:
    table = table_of_acquaintances()
    for path in MODULES.values():
        part = _row_of(path, table)
        if part is None:
            continue  # mlfs itself: see above
        ours, others = table[part]
        for module in imports_of(path):
            if module.split(".")[0] in ("mlfs", "mountd"):
                # `import mlfs` is for the version.
                allowed = module == "mlfs" or any(within(module, name) for name in {*ours, _package(part)})
            else:
                allowed = module.split(".")[0] in {*others, *sys.stdlib_module_names}
            assert allowed, f"{path.relative_to(ROOT)} imports {module}: see docs/architecture.md"


def _row_of(path: Path, table: dict[str, tuple[frozenset[str], frozenset[str]]]) -> str | None:
    """The most specific part that a file belongs to."""
    name = path.relative_to(ROOT).as_posix()
    parts = [part for part in table if name.startswith(part + "/") or name in (part, f"{part}.py")]
    return max(parts, key=len, default=None)


def _package(part: str) -> str:
    """Everybody may know the modules beside them."""
    return part.replace("/", ".") if part.startswith("mlfs/") else part.partition("/")[0]


def test_no_two_test_modules_have_one_name() -> None:
    """pytest imports each by its name alone, but for those of a package."""
    packaged = {path.parent for path in (ROOT / "tests").rglob("__init__.py")}
    modules = [path for path in (ROOT / "tests").rglob("*.py") if path.parent not in packaged]
    names = Counter(path.name for path in modules if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_is_imported_in_a_circle() -> None:
    graph = {name: set(imports_of(path) & MODULES.keys()) - {name} for name, path in MODULES.items()}
    while ends := [name for name, known in graph.items() if not known & graph.keys() or _nobody_knows(name, graph)]:
        for name in ends:
            del graph[name]
    assert not graph, f"in circles, or between two: {sorted(graph)}"


def _nobody_knows(name: str, graph: dict[str, set[str]]) -> bool:
    return all(name not in known for known in graph.values())


def test_no_module_is_imported_by_tests_only() -> None:
    used = set().union(*(imports_of(path) | named_in(path) for path in SOURCES))
    # python -m mlfs, python -m mountd, commands of pyproject.toml
    started = {"mlfs.__main__", "mountd.__main__", "mlfs.cli.main", "mlfs.cli.mount_helper"}
    unused = {name for name, path in MODULES.items() if path.name != "__init__.py"} - used - started
    assert unused == set(ONLY_TESTS_IMPORT), "delete it, use it, or say why it is there"


# -- who may change what


def test_nobody_assigns_the_fields_of_what_other_modules_define() -> None:
    """An object is changed by its own methods, or as a plain record by the module that defines it."""
    fields = {name: fields_defined_in(path) for name, path in MODULES.items()}
    ours = set().union(*fields.values()) - FIELDS_OF_LIBRARIES
    found = set()
    for name, path in MODULES.items():
        for target in (target for node in nodes_of(path) for target in targets_of(node)):
            if isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"):
                continue
            # What a module reaches through `self` it holds: another object's part, whatever its field is called.
            through_self = ast.unparse(target.value).startswith("self.")
            if target.attr in ours and (through_self or target.attr not in fields[name]):
                found.add(f"{name}: {ast.unparse(target)}")
    assert not found, "give the object a method with a verb, or wire it in its constructor"


def test_no_property_can_be_assigned() -> None:
    """A setter makes it look as if a field of one's own was written, wherever it is used."""
    for name, path in MODULES.items():
        decorators = (
            decorator
            for node in nodes_of(path)
            if isinstance(node, ast.FunctionDef)
            for decorator in node.decorator_list
        )
        assert not any(isinstance(d, ast.Attribute) and d.attr in ("setter", "deleter") for d in decorators), name


def targets_of(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        left: list[ast.expr] = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        left = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        left = [node.optional_vars]
    else:
        left = []
    while left:
        target = left.pop()
        if isinstance(target, ast.Tuple | ast.List):
            left += target.elts
        elif isinstance(target, ast.Starred):
            left.append(target.value)
        elif isinstance(target, ast.Attribute):
            yield target


def fields_defined_in(path: Path) -> set[str]:
    """The fields of all classes of a module: what their methods assign, and what their bodies declare."""
    classes = [node for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    declared = {
        node.target.id
        for found in classes
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assigned = (target for found in classes for node in ast.walk(found) for target in targets_of(node))
    return declared | {t.attr for t in assigned if isinstance(t.value, ast.Name) and t.value.id == "self"}


PATCHES = {"setattr", "delattr"}
# What may be asked of others' objects though its name begins with an underscore: it is documented.
DOCUMENTED = {"_replace", "_asdict", "_fields", "_exit", "_make"}


def test_tests_ask_no_private_members() -> None:
    """A test says what somebody may rely on: what it asks has a name without an underscore, or it asks otherwise."""
    found = {path.relative_to(ROOT).as_posix(): sorted(set(private_members_asked(path))) for path in TESTS}
    assert {name: asked for name, asked in found.items() if asked} == {}


def private_members_asked(path: Path) -> Iterator[str]:
    """Attributes and imports with an underscore that a file does not define itself, also those that it patches."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    own = {node.name for node in nodes_of(path) if isinstance(node, functions)} | fields_defined_in(path) | DOCUMENTED
    for node in nodes_of(path):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [] if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHES:
            words = [word.value for word in node.args[:2] if isinstance(word, ast.Constant)]
            names = [word.rpartition(".")[2] for word in words if isinstance(word, str)]
        yield from (name for name in names if re.match(r"_[A-Za-z]", name) and name not in own)


# -- what is shown is made from frozen figures


def test_what_is_shown_is_made_from_frozen_figures_alone() -> None:
    """All that can be reached from what the status and the metrics are given is frozen: nothing of it is a part that
    runs. Nor do they import a class of which anything could be asked."""
    assert not _not_frozen(MountStatistics)
    for name in ("mountd.status", "mountd.messages", "mountd.metrics"):
        for what, value in vars(import_module(name)).items():
            ours = isinstance(value, type) and value.__module__.partition(".")[0] in ("mlfs", "mountd")
            if ours and value.__module__ != name:
                assert not _not_frozen(value), f"{name} knows {what}"


def test_a_part_that_runs_is_not_frozen() -> None:
    """The check sees it, however deep it lies."""

    @dataclass(frozen=True)
    class Holds:
        part: tuple[Sequence[Score], ...]

    assert _not_frozen(Holds) == {Score}
    assert _not_frozen(Score) == {Score}


def _not_frozen(kind: Any, known: frozenset[Any] = frozenset()) -> set[Any]:
    """The types, among those of which a value of this type is made, that are neither plain nor frozen."""
    plain = (int, float, str, bool, type(None), object)  # object: a value that is made for JSON
    if kind in known or kind in plain or kind in (Any, Ellipsis):
        return set()
    known |= {kind}
    if get_origin(kind) in (tuple, dict, Mapping, Sequence, Union, UnionType):
        inner = list(get_args(kind))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        inner = []
    elif isinstance(kind, type) and (
        hasattr(kind, "_fields") or (is_dataclass(kind) and kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    ):
        inner = list(get_type_hints(kind).values())
    else:
        return {kind}
    return set().union(*(_not_frozen(part, known) for part in inner))


# -- what docstrings and documents say

# How no sentence of a docstring begins: the subject comes first ("The bytes that are kept", not "What is kept").
NO_BEGINNING = re.compile(r"[\W_]*(?:who|what|that|of|where)\b", re.IGNORECASE)
SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"])")
ONLY_REFERS = re.compile(r"See [^.;:]*\.?")
SAY_NOTHING = {"the", "a", "an", "of", "it", "its", "is", "to", "and", "for", "in", "this", "one", "s"}


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """(name, docstring) of a module, its classes and its functions; "" names the module."""
    for node in nodes_of(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", ""), text


def faults_of_docstring(name: str, text: str) -> Iterator[str]:
    """The sentences that begin without their subject, and a docstring that says nothing besides a name."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in SENTENCES.split(" ".join(paragraph.split())):
            if NO_BEGINNING.match(sentence):
                yield f"the subject comes first: {sentence}"
    whole = " ".join(text.split())
    if ONLY_REFERS.fullmatch(whole) or whole.startswith("See the module"):
        yield f"it only refers: {whole}"
    named = set(re.findall(r"[a-z]+", re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()))
    said = set(re.findall(r"[a-z]+", whole.lower())) - SAY_NOTHING
    if said and said <= named | {f"{word}s" for word in named} | {word.removesuffix("s") for word in named}:
        yield f"it repeats the name {name}: {whole}"


def test_docstrings_are_plain_sentences() -> None:
    found = [
        (name, of, fault)
        for name, path in MODULES.items()
        for of, text in docstrings(path)
        for fault in faults_of_docstring(of, text)
    ]
    assert found == []


def test_a_docstring_that_is_no_plain_sentence_is_found() -> None:
    assert list(faults_of_docstring("kept", "Counts them. What is kept stays."))
    assert list(faults_of_docstring("run", "See Runner."))
    assert list(faults_of_docstring("Run", "See the module.\n\nArgs:\n    name: its own."))
    assert list(faults_of_docstring("begin_probe", "A probe begins."))
    assert not list(faults_of_docstring("kept", "The bytes that are kept; see `Tier`."))


def test_what_a_docstring_says_of_its_callers_is_true() -> None:
    for name, path in MODULES.items():
        for caller in callers_named_by(name):
            files = [other for where, other in MODULES.items() if within(where, caller)]
            files += [ROOT / caller] if caller.startswith("scripts/") else []
            assert files, f"{name}: there is no {caller}"
            assert any(_imports(file, name) for file in files if file != path), f"{caller} does not import {name}"


def callers_named_by(name: str) -> Iterator[str]:
    """Modules, packages and scripts of which a module's docstring says that they call, use, run or read it."""
    said = " ".join((ast.get_docstring(tree_of(MODULES[name])) or "").split())
    for clause in CALLERS.findall(re.sub(r"\((?!(?:mlfs|mountd)[\w.]+\))[^)]*\)", "", said)):
        for match in CALLER.finditer(UNTIL.split(clause)[0]):
            found = match.groupdict()
            beside = f"{name.rpartition('.')[0]}.{found['beside']}"
            if found["command"]:
                of_laboratory = f"mlfs.lab.commands.{found['command']}"
                yield of_laboratory if of_laboratory in MODULES else f"mlfs.cli.{found['command']}"
            elif found["part"]:
                yield PARTS[found["part"]]
            elif found["dotted"] or found["script"]:
                yield (found["dotted"] or found["script"]).strip("`")
            elif beside in MODULES:
                yield beside


def _imports(path: Path, name: str) -> bool:
    """Whether a file imports a module, or its package that hands on what the module has."""
    package = name.rpartition(".")[0]
    handed_on = package in MODULES and name in imports_of(MODULES[package])
    return name in imports_of(path) | named_in(path) or (handed_on and package in imports_of(path))


def test_the_glossary_has_each_word_once() -> None:
    rows = re.findall(r"^- \*\*([\w ,-]+)\*\*: .", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    words = [word.strip() for row in rows for word in row.split(",")]
    assert len(words) > 60
    assert sorted(words) == sorted(set(words)), "one word, one meaning"


def test_every_decision_is_in_the_index_with_its_date_and_title() -> None:
    folder = ROOT / "docs/decisions"
    rows = re.findall(
        r"^\| (\d{4}-\d\d-\d\d) \| \[(.+?)\]\(([\w-]+\.md)\) \| (.+) \|$", (folder / "README.md").read_text(), re.M
    )
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True), "the newest stands first"
    assert {row[2] for row in rows} == {path.name for path in folder.glob("*.md")} - {"README.md"}
    for date, title, name, _ in rows:
        head, dated = (folder / name).read_text().split("\n")[0:3:2]
        assert head == f"# {title}", name
        assert dated.startswith(f"Date: {date}"), name
