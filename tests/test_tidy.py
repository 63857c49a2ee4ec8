"""The house rules as tests. Each rule is a function from text to complaints; `test_each_rule_bites`
plants a violation of every one, so that none of them can pass by looking at nothing."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

FUNCTIONS_ALLOWED: dict[str, tuple[int, str]] = {}
"""`path::qualified name` -> (lines at most, why it may not be split)."""

SKIPPED_DIRS = {"__pycache__", "node_modules", "dist", "build", "out", "static", "generated"}
KEPT_DOT_NAMES = {".ci", ".github", ".gitignore", ".npmrc"}
CODE = {".py", ".ts", ".tsx", ".sh", ".css"}
TEXT = CODE | {".md", ".toml", ".yaml", ".yml", ".json", ".cfg", ".ini", ".txt", ".html", ".svg"}

Rule = Callable[[str, str], list[str]]
"""(path relative to the root, text) -> complaints, each with a line where there is one."""


# ------------------------------------------------------------------------------------ the files


def _walk(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        hidden = path.name.startswith(".") and path.name not in KEPT_DOT_NAMES
        if hidden or path.is_symlink() or path.name.endswith(".egg-info"):
            continue
        if path.is_file():
            yield path
        elif path.name not in SKIPPED_DIRS:
            yield from _walk(path)


@functools.cache
def files() -> dict[str, str]:
    """Every text file of the project, by its path relative to the root."""
    found = {}
    for path in _walk(ROOT):
        if path.suffix in TEXT or (path.suffix == "" and path.stat().st_size < 1_000_000):
            found[path.relative_to(ROOT).as_posix()] = path.read_text("utf-8", "replace")
    return found


def select(*suffixes: str, under: tuple[str, ...] = ("",)) -> Iterator[tuple[str, str]]:
    return ((p, t) for p, t in files().items() if p.endswith(suffixes) and p.startswith(under))


def complaints(rule: Rule, chosen: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{path}: {what}" for path, text in chosen for what in rule(path, text))


# --------------------------------------------------------------------------------- Python sources


@functools.lru_cache(maxsize=2048)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """(name bound here, dotted name it stands for, line) of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, alias.name if alias.asname else bound, node.lineno
                yield "", alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno


def _uses(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Dotted names that are imported or read, with import aliases resolved, and their lines."""
    bound = {}
    for name, dotted, line in _imports(tree):
        bound[name] = dotted
        yield dotted, line
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = [node.attr]
            value = node.value
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id in bound:
                yield ".".join([bound[value.id], *reversed(parts)]), node.lineno


def file_length(path: str, text: str) -> list[str]:
    lines = text.count("\n")
    return [f"{lines} lines, {FILE_LINES_MAX} at most"] if lines > FILE_LINES_MAX else []


def _functions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from _functions(child, f"{prefix}{child.name}." if named else prefix)


def function_lengths(text: str) -> dict[str, tuple[int, int]]:
    """Qualified name -> (lines from `def` to the end without the docstring, first line)."""
    lengths = {}
    for name, node in _functions(_tree(text)):
        first = node.body[0]
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node, clean=False) is not None:
            lines -= (first.end_lineno or first.lineno) - first.lineno + 1
        lengths[name] = (lines, node.lineno)
    return lengths


def function_length(path: str, text: str) -> list[str]:
    found = []
    for name, (lines, line) in function_lengths(text).items():
        allowed, _ = FUNCTIONS_ALLOWED.get(f"{path}::{name}", (FUNCTION_LINES_MAX, ""))
        if lines > allowed:
            found.append(f"{line}: {name} has {lines} lines, {allowed} at most")
    return found


def no_print(path: str, text: str) -> list[str]:
    return [
        f"{node.lineno}: print(); use rich, click.echo or a counter"
        for node in ast.walk(_tree(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "pprint")
    ]


SLEEPS = ("time.sleep", "asyncio.sleep", "anyio.sleep", "trio.sleep")


def no_sleep(path: str, text: str) -> list[str]:
    """`asyncio.sleep(0)` only yields, so it may stay."""
    tree = _tree(text)
    yields = {
        node.func.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == 0
    }
    return [
        f"{line}: {name}; wait on an event, inject the clock, or use `eventually`"
        for name, line in _uses(tree)
        if name in SLEEPS and not (name == "asyncio.sleep" and line in yields)
    ]


COMPILERS = ("njit", "jit", "cfunc", "vectorize", "guvectorize", "stencil", "generated_jit")


def kernels_use_our_decorator(path: str, text: str) -> list[str]:
    banned = {f"numba.{name}" for name in COMPILERS}
    banned |= {f"numba.core.decorators.{name}" for name in COMPILERS}
    banned |= {f"numba.extending.{name}" for name in ("intrinsic", "register_jitable")}
    return [
        f"{line}: {name}; use the decorators of tidecast.native.jit"
        for name, line in _uses(_tree(text))
        if name in banned
    ]


def no_jitclass(path: str, text: str) -> list[str]:
    return [
        f"{line}: {name}; state lives in structured arrays and rings"
        for name, line in _uses(_tree(text))
        if name.startswith("numba.") and "jitclass" in name
    ]


def native_alone_is_native(path: str, text: str) -> list[str]:
    return [
        f"{line}: imports {name}; only tidecast.native may"
        for bound, name, line in _imports(_tree(text))
        if name.partition(".")[0] in ("llvmlite", "ctypes", "_ctypes", "cffi")
    ]


# ------------------------------------------------------------------------------------ all texts

MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:home|root|Users|work)/[\w.]+")


def no_machine_paths(path: str, text: str) -> list[str]:
    return [
        f"{text.count(chr(10), 0, found.start()) + 1}: {found.group()}"
        for found in MACHINE_PATH.finditer(text)
    ]


LOCK_FILES = re.compile(
    r"(^|/)(package-lock\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|yarn\.lock|uv\.lock|"
    r"poetry\.lock|\.npmrc|pip\.conf|[\w.-]*requirements[\w.-]*\.txt|constraints[\w.-]*\.txt)$"
)
PUBLIC_REGISTRIES = {
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "pypi.org",
    "files.pythonhosted.org",
    "repo1.maven.org",
    "repo.maven.apache.org",
}
LOCK_SOURCE = re.compile(
    r"(?:resolved|registry|tarball|index-url|find-links|trusted-host|source|(?<!\")url)"
    r"\"?\s*[:= ]\s*\{?\s*[\"']?(?:registry\s*=\s*[\"'])?(?:https?:)?//(?:[^/@\s\"']*@)?([^/\s\"']+)"
)


def no_private_registry(path: str, text: str) -> list[str]:
    """Only keys that say where a package comes from count: `"url"` in a package-lock is funding."""
    hosts = {found.group(1) for found in LOCK_SOURCE.finditer(text)}
    return [f"names {host}" for host in sorted(hosts - PUBLIC_REGISTRIES)]


# ------------------------------------------------------------------------------------- Markdown


def _fences(text: str, *languages: str) -> Iterator[tuple[int, str]]:
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "fence" and token.info.strip().split(" ")[0] in languages:
            yield (token.map or [0])[0] + 2, token.content


def _anchors(text: str) -> set[str]:
    """The anchors GitHub gives to the headings of a page."""
    anchors: set[str] = set()
    tokens = MarkdownIt("commonmark").parse(text)
    for before, token in zip(tokens, tokens[1:], strict=False):
        if before.type == "heading_open":
            title = "".join(c.content for c in token.children or [] if c.type != "html_inline")
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            serial = 0
            while (anchor := f"{slug}-{serial}" if serial else slug) in anchors:
                serial += 1
            anchors.add(anchor)
    return anchors


def links_resolve(path: str, text: str) -> list[str]:
    found = []
    for block in MarkdownIt("commonmark").parse(text):
        for token in block.children or []:
            target = str(token.attrs.get("href") or token.attrs.get("src") or "")
            if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            page = (ROOT / path).parent / name if name else ROOT / path
            line = (block.map or [0])[0] + 1
            if not page.exists():
                found.append(f"{line}: {target} leads nowhere")
            elif anchor and page.suffix == ".md":
                there = text if not name else page.read_text("utf-8")
                if anchor not in _anchors(there):
                    found.append(f"{line}: {target}: no such heading")
    return found


TOP_LEVEL = re.compile(
    r"^(?:(?:engine|backend|frontend|tests|benchmarks|docs|docker|\.ci|\.github)/[\w./-]*"
    r"|[A-Z][A-Z_]+\.md|LICENSE|Makefile|pyproject\.toml|alembic\.ini)$"
)


def named_files_exist(path: str, text: str) -> list[str]:
    return [
        f"{(block.map or [0])[0] + 1}: {token.content} does not exist"
        for block in MarkdownIt("commonmark").parse(text)
        for token in block.children or []
        if token.type == "code_inline"
        and TOP_LEVEL.match(token.content)
        and not (ROOT / token.content).exists()
    ]


def python_examples_parse(path: str, text: str) -> list[str]:
    found = []
    for line, code in _fences(text, "python", "py"):
        try:
            compile(code, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except SyntaxError as error:
            found.append(f"{line + (error.lineno or 1) - 1}: {error.msg}")
    return found


TIDECAST = {"tidecast", ".venv/bin/tidecast"}
COMMANDS = TIDECAST | {
    *("make", "pip", ".venv/bin/pip", "python", "python3", ".venv/bin/python", ".venv/bin/ruff"),
    *("uv", "git", "curl", "docker", "npm", "npx", "spark-submit", "psql"),
    *("apt-get", "sudo", "sysctl", "ip", "ethtool", "tcpdump", "ss", "mount", "taskset"),
    *("cd", "export", "source", ".", "cat", "tail", "head", "grep", "seq", "echo", "printf"),
    *("cmp", "cp", "ls", "mkdir", "kill", "tee", "wc", "yes", "zcat", "journalctl", "jq"),
}


def shell_commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of each simple command in the ```bash fences of a page."""
    for start, code in _fences(text, "bash"):
        code = re.sub(r"<<-?\s*['\"]?(\w+)['\"]?(.*?\n)(?:.*?\n)*?\s*\1(?=\n|$)", r"\2", code)
        joined = code.replace("\\\n", "  ")
        for offset, row in enumerate(joined.split("\n")):
            lexer = shlex.shlex(row, posix=True, punctuation_chars="|&;()<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if word and set(word) <= set("|&;()"):
                    while words and re.match(r"\w+=", words[0]):
                        words = words[1:]
                    if words:
                        yield start + offset, words
                    words = []
                else:
                    words.append(word)


def commands_are_known(path: str, text: str) -> list[str]:
    return [
        f"{line}: starts with {words[0]!r}"
        for line, words in shell_commands(text)
        if words[0] not in COMMANDS
    ]


@functools.cache
def command_line() -> click.Command | None:
    """The click command of `tidecast`; None while the engine has no command line."""
    if importlib.util.find_spec("tidecast.cli") is None:
        return None
    main = importlib.import_module("tidecast.cli").main
    assert isinstance(main, click.Command), "tidecast.cli.main is to be a click command"
    return main


def check_verb(words: list[str], command: click.Command) -> str | None:
    """What is wrong with `tidecast X ...` as far as verbs and option names go."""
    context = click.Context(command, info_name="tidecast")
    options = _options(command)
    verbs = iter(word for word in words[1:] if word not in ("<", ">", ">>"))
    for word in verbs:
        if word.startswith("-") and word != "-":
            name, _, value = word.partition("=")
            if name not in options:
                return f"`{context.command_path}` has no option {name}"
            if options[name] and not value:
                next(verbs, None)
        elif isinstance(command, click.Group):
            inner = command.get_command(context, word)
            if inner is None:
                return f"`{context.command_path}` has no command {word}"
            command, context = inner, click.Context(inner, parent=context, info_name=word)
            options |= _options(command)
    return None


def _options(command: click.Command) -> dict[str, bool]:
    """Option name -> whether a value follows it."""
    options = {"--help": False}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            takes = not (parameter.is_flag or parameter.count)
            options |= dict.fromkeys([*parameter.opts, *parameter.secondary_opts], takes)
    return options


def verbs_exist(path: str, text: str) -> list[str]:
    command = command_line()
    if command is None:
        return []
    return [
        f"{line}: {wrong}"
        for line, words in shell_commands(text)
        if words[0] in TIDECAST and (wrong := check_verb(words, command))
    ]


# -------------------------------------------------------------------------------------- the tests

NOT_NATIVE = [
    (path, text)
    for path, text in select(".py", under=("engine/", "backend/"))
    if not path.startswith("engine/tidecast/native/")
]
DOCS = [(path, text) for path, text in select(".md") if path != "CHANGELOG.md"]

RULES: dict[str, tuple[Rule, list[tuple[str, str]]]] = {
    "file length": (file_length, list(select(*CODE))),
    "function length": (function_length, list(select(".py"))),
    "no print": (no_print, list(select(".py"))),
    "no sleep": (no_sleep, list(select(".py", under=("tests/",)))),
    "kernel decorator": (kernels_use_our_decorator, NOT_NATIVE),
    "no jitclass": (no_jitclass, list(select(".py"))),
    "native alone": (native_alone_is_native, NOT_NATIVE),
    "machine paths": (no_machine_paths, list(files().items())),
    "registries": (no_private_registry, [f for f in files().items() if LOCK_FILES.search(f[0])]),
    "links": (links_resolve, list(select(".md"))),
    "named files": (named_files_exist, list(select(".md", under=("README.md", "CONTRIBUTING.md")))),
    "python examples": (python_examples_parse, DOCS),
    "shell commands": (commands_are_known, DOCS),
    "tidecast verbs": (verbs_exist, DOCS),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    rule, chosen = RULES[name]
    found = complaints(rule, chosen)
    assert not found, f"{name}:\n{found}"


def test_the_rules_see_the_project() -> None:
    for path in ("README.md", "Makefile", ".ci/run", "tests/test_tidy.py", "pyproject.toml"):
        assert path in files()
    assert any(path.startswith("engine/tidecast/native/") for path in files())
    assert NOT_NATIVE


PLANTED: list[tuple[str, str]] = [
    ("file length", "x = 1\n" * (FILE_LINES_MAX + 1)),
    ("function length", "class A:\n def f(self):\n" + "  x = 1\n" * FUNCTION_LINES_MAX),
    ("no print", "def f():\n    print('x')\n"),
    ("no sleep", "import time as t\nt.sleep(1)\n"),
    ("no sleep", "from time import sleep\n"),
    ("no sleep", "import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n"),
    ("kernel decorator", "import numba\n@numba.njit(cache=True)\ndef f(): ...\n"),
    ("kernel decorator", "from numba import njit as fast\n"),
    ("kernel decorator", "import numba as nb\nnb.extending.intrinsic\n"),
    ("no jitclass", "from numba.experimental import jitclass\n"),
    ("no jitclass", "import numba\nnumba.experimental.jitclass\n"),
    ("native alone", "def f():\n    import ctypes.util\n"),
    ("native alone", "from llvmlite import ir\n"),
    ("machine paths", "see " + "/".join(["", "home", "someone", "x"])),
    ("registries", '"resolved": "https://npm.corp.example/left-pad"'),
    ("registries", "index-url = https://user:secret@pypi.corp.example/simple"),
    ("registries", 'source = { registry = "https://pypi.corp.example/simple" }'),
    ("links", "see [it](docs/none-such.md)\n"),
    ("links", "# Title\n\nsee [it](#other)\n"),
    ("named files", "see `docs/none-such.md`\n"),
    ("python examples", "```python\nwith x as y\n```\n"),
    ("shell commands", "```bash\nmake x && ./configure --now\n```\n"),
]


@pytest.mark.parametrize(("name", "text"), PLANTED)
def test_each_rule_bites(name: str, text: str) -> None:
    rule, _ = RULES[name]
    assert rule("README.md", text)


HARMLESS: list[tuple[str, str]] = [
    ("function length", 'def f():\n "' + '""' + "doc\n" * 90 + '""' + '"\n return 1\n'),
    ("no sleep", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n"),
    ("kernel decorator", "import numba\nnumba.int64\n"),
    ("machine paths", "a/home/b ~/work/x https://x.example/work/y $X/root/z"),
    ("registries", '"resolved": "https://registry.npmjs.org/x", "url": "https://fund.example/x"'),
    ("links", "# A title\n\nsee [it](#a-title), [web](https://x.example), [file](Makefile)\n"),
    ("python examples", "```python\nasync with a as b:\n    await b.c()\n```\n"),
    ("shell commands", "```bash\nA=1 make x  # it's\ncat > x <<'E'\nany\nE\nmake y \\\n  z\n```\n"),
]


@pytest.mark.parametrize(("name", "text"), HARMLESS)
def test_no_rule_bites_at_random(name: str, text: str) -> None:
    rule, _ = RULES[name]
    assert not rule("README.md", text)


def test_wrong_verbs_are_found() -> None:
    @click.group()
    @click.option("--data-dir")
    def tool() -> None: ...

    @tool.group()
    def topic() -> None: ...

    @topic.command()
    @click.option("--mode")
    @click.option("--force", is_flag=True)
    @click.argument("name")
    def create(name: str, mode: str, force: bool) -> None: ...

    def check(line: str) -> str | None:
        return check_verb(shlex.split(line), tool)

    assert check("tidecast --data-dir x topic create --mode live logs") is None
    assert check("tidecast topic create --force logs --data-dir=x") is None
    assert "no command destroy" in (check("tidecast topic destroy logs") or "")
    assert "no command peek" in (check("tidecast --data-dir x peek") or "")
    assert "no option --size" in (check("tidecast topic create --size 3 logs") or "")


def test_allowed_functions_still_need_it() -> None:
    for entry, (allowed, reason) in FUNCTIONS_ALLOWED.items():
        path, _, name = entry.partition("::")
        lines, _ = function_lengths(files()[path])[name]
        assert FUNCTION_LINES_MAX < lines <= allowed, f"{entry} has {lines} lines: drop the entry"
        assert reason


def test_decisions_are_listed() -> None:
    index = files()["docs/adr/README.md"]
    for path in files():
        name = path.removeprefix("docs/adr/")
        if path.startswith("docs/adr/0") and not name.startswith("0000"):
            assert f"]({name})" in index, f"{path} is missing in docs/adr/README.md"
            assert re.search(r"^- Status: \w+", files()[path], re.MULTILINE), f"{path}: no status"


def test_import_contracts_hold() -> None:
    code = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    kept = re.search(r"Contracts: (\d+) kept, 0 broken", run.stdout)
    assert kept, run.stdout
    assert int(kept.group(1)) >= 4


def test_lock_files_are_recognised() -> None:
    for name in ("frontend/package-lock.json", "uv.lock", "docker/requirements-spark.txt"):
        assert LOCK_FILES.search(name)
