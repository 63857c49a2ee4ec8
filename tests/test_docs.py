"""The house rules for Markdown as tests: links, examples and commands work, words are plain."""

from __future__ import annotations

import ast
import functools
import importlib
import io
import itertools
import pydoc
import re
import shlex
import tokenize
from collections.abc import Iterator

import click
import pytest
from markdown_it import MarkdownIt

from tests.project import ROOT, Rule, complaints, files, select
from tests.syntax import nodes, statements


def _fences(text: str, *languages: str) -> Iterator[tuple[int, str]]:
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "fence" and token.info.strip().split(" ")[0] in languages:
            yield (token.map or [0])[0] + 2, token.content


@functools.cache
def _anchors(text: str) -> set[str]:
    """The anchors GitHub gives to the headings of a page."""
    anchors: set[str] = set()
    tokens = MarkdownIt("commonmark").parse(text)
    for before, token in itertools.pairwise(tokens):
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
        without_heredocs = re.sub(
            r"<<-?\s*['\"]?(\w+)['\"]?(.*?\n)(?:.*?\n)*?\s*\1(?=\n|$)", r"\2", code
        )
        rows = without_heredocs.replace("\\\n", "  ").split("\n")
        for offset, row in enumerate(rows):
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
    if not (ROOT / "engine/tidecast/cli/__init__.py").exists():
        return None
    main = importlib.import_module("tidecast.cli").main
    assert isinstance(main, click.Command), "tidecast.cli.main is to be a click command"
    return main


def check_verb(words: list[str], command: click.Command) -> str | None:
    """The first unknown verb or option name in `tidecast X ...`."""
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


def page_commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of each `tidecast ...` that a source of the dashboard shows or copies."""
    for found in re.finditer(r"([\"'`])(tidecast [a-z].*?)(?<!\\)\1(?!\w)", text):
        words = shlex.split(re.sub(r"\$\{[^}]*\}", "X", found[2].replace('\\"', '"')))
        yield text.count("\n", 0, found.start()) + 1, words


def page_commands_run(path: str, text: str) -> list[str]:
    command = command_line()
    assert command is not None
    found = []
    for line, words in page_commands(text):
        wrong = check_verb(words, command)
        if words[1] == "pub" and len(words) > 3 and not words[3].startswith("-"):
            wrong = f"`tidecast pub` takes {words[3]!r} for a file: --message"
        if wrong:
            found.append(f"{line}: {wrong}")
    return found


WORDS = {
    r"told|tells?|is said": "is reported; reports, notifies",
    r"go(?:es)? on|went on|going on": "continues, resumes",
    r"anew": "again",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"settle[sd]?|settling": "acked, completed",
    r"lies?": "is, is in",
    r"who reads": "subscribers",
    r"who(?:so)?ever|(?:any|every|no|some)body": "the noun",
    r"one that|that one": "the noun",
    r"what it (?:never )?(?:took|told|holds|had)": "the noun",
}
"""Word -> what a reader whose first language is not English understands at once."""
WORDS_ALLOWED: dict[tuple[str, str], str] = {}
"""(page, word in lower case) -> why it is the right one there, such as a word of another system."""


def prose(text: str) -> str:
    """A page without its code and generated parts, line by line as it was."""

    def blank(found: re.Match[str]) -> str:
        return "0" + "\n" * found[0].count("\n")

    for pattern in (r"^<!-- generated: .*?^<!-- end -->$", r"^ *```.*?^ *```$", r"`[^`]*`"):
        text = re.sub(pattern, blank, text, flags=re.MULTILINE | re.DOTALL)
    return text


def words_are_plain(path: str, text: str) -> list[str]:
    text, found = prose(text), []
    for pattern, better in WORDS.items():
        for match in re.finditer(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), text, re.IGNORECASE):
            word = " ".join(match[0].lower().split())
            if (path, word) not in WORDS_ALLOWED:
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{line}: {word!r}: write {better}")
    return found


CODE_WORDS = re.compile(
    r"\b(?:told|tells|(?:go(?:es)?|went|going)\s+on|anew|mend(?:s|ed|ing)?|amid|whoever)\b",
    re.IGNORECASE,
)
"""Words of `WORDS` that no comment and no docstring of the sources has."""


NOUN_WORDS = re.compile(
    r"\b(?:what|who|whom|whoever|(?:any|every|no|some)body|someone|those (?:that|who|whose))\b",
    re.IGNORECASE,
)
"""Words in the place of a noun, which no comment and no docstring of these folders has."""
NOUN_FOLDERS = ("engine/", "backend/")


def comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment and docstring of a module, without its code."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)


def comments_are_plain(path: str, text: str) -> list[str]:
    return _words_of_comments(CODE_WORDS, text)


def nouns_are_named(path: str, text: str) -> list[str]:
    return _words_of_comments(NOUN_WORDS, text)


def _words_of_comments(words: re.Pattern[str], text: str) -> list[str]:
    if not words.search(text):
        return []
    return [
        f"{line + said.count(chr(10), 0, match.start())}: {match[0]!r}: see WORDS for a better one"
        for line, quoted in comments(text)
        for said in (re.sub(r"`[^`\n]*`", "0", quoted),)
        for match in words.finditer(said)
    ]


TEXT_WORDS = re.compile(
    "|".join(
        rf"\b(?:{each})\b" for each in (*WORDS, "nonsense", "wants|as wanted", "for everybody")
    ),
    re.IGNORECASE,
)
"""Words that no text has which users read on the page, in the REST API, or in an error."""
_OF_PAGE = re.compile(
    r"/\*.*?\*/|(?<!:)//[^\n]*|>([^<>{}=;]*[a-z] [a-z][^<>{}=;]*)(?=[<{])"
    r"|\"([^\"\n]*)\"|'([^'\n]*)'|`([^`]*)`",
    re.DOTALL,
)


def page_texts(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each text of several words in a source of the dashboard."""
    for found in _OF_PAGE.finditer(text):
        said = next((each for each in found.groups() if each), "")
        if " " in said.strip():
            yield text.count("\n", 0, found.start()) + 1, said


def messages(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each text of several words in a module: errors, descriptions of fields."""
    found = nodes(ast.parse(text))
    quoted = {id(node.value) for node in found if isinstance(node, ast.Expr)}
    for node in found:
        if not isinstance(node, ast.Constant) or id(node) in quoted:
            continue
        if isinstance(node.value, str) and node.value.count(" ") > 1:
            yield node.lineno, node.value


def api_docstrings(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of what /api/v1/openapi.json shows of a module of routes or schemas."""
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said and not node.name.startswith("_"):
                yield node.lineno, said


def texts_are_plain(path: str, text: str) -> list[str]:
    """No text that users read has a word of TEXT_WORDS. Layouts are left out, as kernels are."""
    if path.endswith((".ts", ".tsx")):
        said = [*page_texts(text)]
    else:
        said = [*messages(text)]
        if path.endswith(("/routes.py", "/schemas.py")):
            said += api_docstrings(text)
    return [
        f"{line}: {match[0]!r} in {' '.join(each.split())[:60]!r}: see WORDS for a better one"
        for line, each in said
        for match in TEXT_WORDS.finditer(re.sub(r"`[^`\n]*`", "0", each))
    ]


DOCS = [(path, text) for path, text in select(".md") if path != "CHANGELOG.md"]
PAGE = re.compile(r"(?:docs/\w+|README|CONTRIBUTING)\.md")
"""Pages that users read."""

RULES: dict[str, tuple[Rule, list[tuple[str, str]]]] = {
    "links": (links_resolve, list(select(".md"))),
    "named files": (named_files_exist, list(select(".md", under=("README.md", "CONTRIBUTING.md")))),
    "python examples": (python_examples_parse, DOCS),
    "shell commands": (commands_are_known, DOCS),
    "tidecast verbs": (verbs_exist, DOCS),
    "the dashboard's commands": (page_commands_run, list(select(".tsx", under=("frontend/src",)))),
    "plain words": (words_are_plain, [each for each in DOCS if PAGE.fullmatch(each[0])]),
    "plain texts": (
        texts_are_plain,
        [
            *select(".ts", ".tsx", under=("frontend/src",)),
            *(
                each
                for each in select(".py", under=("engine/", "backend/"))
                if "/layout/" not in each[0]
            ),
        ],
    ),
    "named nouns": (
        nouns_are_named,
        [*select(".py", under=NOUN_FOLDERS)],
    ),
    "plain comments": (
        comments_are_plain,
        [*select(".py", under=("engine/", "backend/"))],
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    rule, chosen = RULES[name]
    found = complaints(rule, chosen)
    assert not found, f"{name}:\n{found}"


PLANTED: list[tuple[str, str]] = [
    ("links", "see [it](docs/none-such.md)\n"),
    ("links", "# Title\n\nsee [it](#other)\n"),
    ("named files", "see `docs/none-such.md`\n"),
    ("python examples", "```python\nwith x as y\n```\n"),
    ("shell commands", "```bash\nmake x && ./configure --now\n```\n"),
    ("the dashboard's commands", "<Command text=\"tidecast pub hello 'hi'\" />\n"),
    ("the dashboard's commands", "cli: `tidecast topic remove ${name}`,\n"),
    ("plain words", "The loss is told.\n"),
    ("plain words", "Publishing goes\non.\n"),
    ("plain words", "```bash\nls\n```\n\nWhoever `reads` it.\n"),
    ("plain comments", "x = 1  # the loss is told\n"),
    ("named nouns", '"""Sends what a client wrote."""\n'),
    ("named nouns", "x = 1  # those who read it\n"),
    ("plain comments", 'def f():\n    """Publishing goes\n    on."""\n'),
]


@pytest.mark.parametrize(("name", "text"), PLANTED)
def test_each_rule_bites(name: str, text: str) -> None:
    rule, _ = RULES[name]
    assert rule("README.md", text)


HARMLESS: list[tuple[str, str]] = [
    ("links", "# A title\n\nsee [it](#a-title), [web](https://x.example), [file](Makefile)\n"),
    ("python examples", "```python\nasync with a as b:\n    await b.c()\n```\n"),
    ("the dashboard's commands", "commands={[`tidecast pub ${name} --message 'hi'`]}\n"),
    ("plain words", "`Settle` is a frame.\n\n```python\nsettle()\n```\n\nA belief, a plane.\n"),
    ("plain comments", "told = 'anew'  # `told`: rows\n"),
    ("shell commands", "```bash\nA=1 make x  # it's\ncat > x <<'E'\nany\nE\nmake y \\\n  z\n```\n"),
]


def test_allowed_words_are_used() -> None:
    for page, word in WORDS_ALLOWED:
        assert re.search(rf"\b{word}\b", prose(files()[page]), re.IGNORECASE), (page, word)


PLANTED_TEXTS = [
    ("page.tsx", "<p>\n  Publishing goes on.\n</p>\n"),
    ("page.ts", 'hint: "nobody reads it",\n'),
    ("errors.py", 'raise Bad(f"{x}: the engine tells them")\n'),
    ("a/schemas.py", 'class A:\n    """A topic as wanted."""\n'),
]


@pytest.mark.parametrize(("path", "text"), PLANTED_TEXTS)
def test_the_rule_of_texts_bites(path: str, text: str) -> None:
    assert texts_are_plain(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("page.tsx", "// nobody reads it\n<p className='x y'>A topic, `settle` and {told}.</p>\n"),
        ("errors.py", '"""Nobody reads it."""\nmend = x(told="a b")  # anew\n'),
    ],
)
def test_the_rule_of_texts_leaves_code_alone(path: str, text: str) -> None:
    assert not texts_are_plain(path, text)


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


def test_decisions_are_listed() -> None:
    index = files()["docs/adr/README.md"]
    for path in files():
        name = path.removeprefix("docs/adr/")
        if path.startswith("docs/adr/0") and not name.startswith("0000"):
            assert f"]({name})" in index, f"{path} is missing in docs/adr/README.md"
            assert re.search(r"^- Status: \w+", files()[path], re.MULTILINE), f"{path}: no status"


def test_the_reference_names_what_there_is() -> None:
    """The objects of `docs/site.py`, which imports MkDocs: an extra that is not always there."""
    [pages] = [
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "docs/site.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PYTHON"
    ]
    assert len(pages) >= 5
    for page, (_, *objects) in pages.items():
        assert f"reference/{page}.md" in (ROOT / "mkdocs.yml").read_text("utf-8")
        for each in objects:
            assert pydoc.locate(each) is not None, f"{page}: {each}"
