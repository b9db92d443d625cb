"""What MkDocs has no page for in docs/: the reference, examples, benchmarks, the changes; each is made as the site is built."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, cast

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tensorflow_ipu"
# Public modules that `ipu` does not list, since names of them stand there.
_BESIDE = ("multi_worker_strategy", "strategy")
# A link of a page in docs/ to a file or folder outside of it.
_OUTSIDE = re.compile(r"\]\(\.\./(examples/\w+|benchmarks/[\w-]+|CHANGELOG)(?:\.py|\.md|/README\.md|/)?(?=[)#])")
_IDENTIFIER = re.compile(r"[a-z]_[a-z]|[a-z][A-Z]|[A-Z]{2}[a-z]")
# What stands behind the pages of docs/ among the results of the search.
_BOOSTS = {"CHANGELOG": 0.2, "benchmarks": 0.2, "examples": 0.4, "names": 0.5, "notebooks/": 0.5, "reference": 0.5}
# What the search leaves out of a notebook: what its cells print, and the button that copies, with its second text of the cell.
_NO_WORDS = re.compile(r'tabindex="0">\n<pre|<(?:span class="notice"|div class="clipboard-copy-txt")')
_SOURCE_STYLE = "<style>:root { color-scheme: light dark } :target { background: #fd06 }</style>"


@cache
def _package() -> griffe.Module:
    return cast(
        "griffe.Module", griffe.load(PACKAGE, search_paths=[ROOT], allow_inspection=False, resolve_aliases=True)
    )


def _members(module: griffe.Module) -> dict[str, griffe.Object | griffe.Alias]:
    """What a module's `__all__` names, functions first: they are what most readers look for."""
    found = {str(name): module[str(name)] for name in module.exports or ()}
    # Where a function has the name of the module that it is from, griffe has the module.
    own = {name: one[name] if module.imports.get(name) == f"{one.path}.{name}" else one for name, one in found.items()}
    return dict(sorted(own.items(), key=lambda item: not item[1].is_function))


@cache
def _modules() -> dict[str, griffe.Module]:
    """The public modules by their names below the package: those that its list has, and the lists of those."""
    found: dict[str, griffe.Module] = {}

    def add(name: str, module: griffe.Module) -> None:
        found[name] = module
        for member, one in _members(module).items():
            if one.is_module:
                add(
                    f"{name}.{member}".lstrip("."),
                    cast("griffe.Module", one.final_target if isinstance(one, griffe.Alias) else one),
                )

    for name in ("", *_BESIDE):
        add(name, _package()[name] if name else _package())
    return found


@cache
def _places() -> dict[str, str]:
    """Where in the reference what is public is, by canonical paths."""
    found = {module.path: f"{name}.md" for name, module in _modules().items() if name}
    # The deepest first: what a package takes from its modules is documented there.
    for name, module in sorted(_modules().items(), key=lambda item: (-item[0].count("."), item[0])):
        for one in _members(module).values() if name else ():
            found.setdefault(one.canonical_path, f"{name}.md#{one.path}")
    return found


def _rows(module: griffe.Module) -> str:
    rows = ["| name | what it is |", "| --- | --- |"]
    for name, one in _members(module).items():
        words = one.docstring.value.split("\n\n")[0].replace("\n", " ").replace("|", "\\|") if one.docstring else ""
        rows.append(f"| [`{name}`]({_places()[one.canonical_path]}) | {words} |")
    return "\n".join(rows)


def _reference(name: str, module: griffe.Module) -> str:
    text = module.docstring.value if module.docstring else ""
    paths = [one.path for one in _members(module).values() if _places()[one.canonical_path] == f"{name}.md#{one.path}"]
    return "\n\n".join([f"# `ipu.{name}`", text, _rows(module), *(f"::: {path}" for path in paths)])


def _example(file: Path) -> str:
    code = file.read_text()
    words = ast.get_docstring(ast.parse(code)) or ""
    return f"# {file.name}\n\n{words}\n\n```python\n{code}```\n"


def _listing() -> str:
    """All names of the SDK as a table, with a filter."""
    command = [sys.executable, "-m", PACKAGE, "list", "--json"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = ["| name in the SDK | state | here |", "| --- | --- | --- |"]
    for name, state, words in (entry.values() for entry in json.loads(listed)):
        here = words.replace(f"{PACKAGE}.", "ipu.", 1)
        if here in _names():
            here = f"[`{here}`](reference/{_names()[here]})"
        elif here != words:
            here = "the same name, with the compatibility layer"
        rows.append(f"| `{name}` | {state} | {here} |")
    return "\n".join(['<input id="names-filter" type="search" placeholder="Filter, such as: ctc loss">\n', *rows])


@event_priority(100)  # Before the plugin that makes pages of notebooks.
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    pages = {f"reference/{name}.md": _reference(name, module) for name, module in _modules().items() if name}
    pages |= {f"examples/{file.stem}.md": _example(file) for file in sorted((ROOT / "examples").glob("*.py"))}
    for file in sorted((ROOT / "benchmarks").rglob("README.md")):
        name = "README" if file.parent.name == "benchmarks" else file.parent.name
        pages[f"benchmarks/{name}.md"] = file.read_text().replace("](../../docs/", "](../")
    pages["CHANGELOG.md"] = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for file in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        files.append(File(f"notebooks/{file.name}", str(ROOT / "examples"), config.site_dir, config.use_directory_urls))
    config.nav = [part for entry in config.nav or () for part in _expanded(entry, files)]
    return files


def _expanded(entry: Any, files: Files) -> list[Any]:
    """An entry of the navigation with all pages in the place of a pattern, such as `examples/*`; nothing if there are none."""
    if isinstance(entry, dict):
        [(title, below)] = entry.items()
        found = [part for one in _as_list(below) for part in _expanded(one, files)]
        return [{title: found if isinstance(below, list) or "*" in below else below}] if found else []
    return [file.src_uri for file in files if fnmatch(file.src_uri, entry)] if "*" in entry else [entry]


def _as_list(entry: Any) -> list[Any]:
    return entry if isinstance(entry, list) else [entry]


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Leads links out of docs/ to the pages that stand for the files, and fills in tables."""
    if page.file.src_uri == "names.md":
        page.meta["hide"] = ["toc"]  # Its place is the table's.
        markdown = markdown.replace("<!-- All names. -->", _listing())
    if page.file.src_uri == "reference.md":
        markdown = markdown.replace("<!-- All names. -->", _rows(_package()).replace("](", "](reference/"))
    markdown = re.sub(r"(?<!\[)`examples/(\w+)\.py`", r"[`\1.py`](../examples/\1.py)", markdown)
    markdown = markdown.replace("](../examples/notebooks/", "](notebooks/")
    markdown = _OUTSIDE.sub(r"](\1.md", markdown)
    # Where a link shows the name of a file, as on GitHub, it shows the page's title.
    return re.sub(r"\[(\w+\.md)\](?=\(\1[)#])", lambda link: f"[{_title(link.group(1))}]", markdown)


def _title(page: str) -> str:
    return (ROOT / "docs" / page).read_text().partition("\n")[0].removeprefix("# ").partition(":")[0]


@cache
def _names() -> dict[str, str]:
    """Where pages may link to, by `ipu.feeds.set_wait_limit`, `feeds.set_wait_limit` and `set_wait_limit`."""
    found: dict[str, set[str]] = {}
    for name, module in _modules().items():
        for member, one in _members(module).items():
            short = f"{name}.{member}".lstrip(".")
            spellings = [f"ipu.{short}"]
            if "." in short and not short.startswith("keras"):  # Which is Keras.
                spellings.append(short)
            if _IDENTIFIER.search(member):  # And no word of a language.
                spellings.append(member)
            for spelling in spellings:
                found.setdefault(spelling, set()).add(_places()[one.canonical_path])
    return {name: places.pop() for name, places in found.items() if len(places) == 1}


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Has names in the text lead to the reference, a notebook's links to the pages of the site, and the search to concepts."""
    boosts = [boost for path, boost in _BOOSTS.items() if page.file.src_uri.startswith(path)]
    page.meta["search"] = {"boost": boosts[0] if boosts else 1}
    if page.file.src_uri.endswith(".ipynb"):
        html = re.sub(r'<a class="anchor-link".*?</a>', "", html)
        html = _NO_WORDS.sub(r'\g<0> data-search-exclude="yes"', html)
        html = re.sub(r'href="(\w+)\.ipynb', r'href="\1.html', html)
        return re.sub(r'href="\.\./\.\./docs/(\w+)\.md', r'href="../\1.html', html)

    def link(code: re.Match[str]) -> str:
        place = _names().get(code.group(1).removesuffix("()"))
        target = place and get_relative_url(f"reference/{place.replace('.md', '.html')}", page.url)
        return f'<a href="{target}">{code.group()}</a>' if target else code.group()

    parts = re.split(r"(<(h\d|pre|a)\b.*?</\2>)", html, flags=re.DOTALL)
    # Of three parts each the first is text; the others are what is left alone, and its tag.
    return "".join(
        re.sub(r"<code>([\w.]+(?:\(\))?)</code>", link, part) if number % 3 == 0 else part
        for number, part in enumerate(parts)
        if number % 3 < 2
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Writes a page for each source file, to which the reference links, and completes the worker of the search."""
    [worker] = Path(config.site_dir, "assets/javascripts/workers").glob("search.*.js")
    worker.write_text((ROOT / "build_tools/site/search.js").read_text() + worker.read_text())
    light, dark = (HtmlFormatter(style=style, linenos="inline", linespans="L") for style in ("default", "github-dark"))
    style = f"<style>{light.get_style_defs()} @media (prefers-color-scheme: dark) {{ {dark.get_style_defs()} }}</style>"
    for file in (ROOT / PACKAGE).rglob("*.py"):
        name = file.relative_to(ROOT)
        page = Path(config.site_dir, "source", f"{name}.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        code = highlight(file.read_text(), PythonLexer(), light)
        page.write_text(f'<!doctype html><meta charset="utf-8"><title>{name}</title>{_SOURCE_STYLE}{style}{code}')


class Options(griffe.Extension):
    """Documents what has no docstring of its own: options of a configuration, and members of enumerations."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Takes default and meaning out of `Option(default, meaning)`."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "Option":
            attr.docstring = griffe.Docstring(ast.literal_eval(str(value.arguments[1])), parent=attr)
            attr.value = value.arguments[0]
        elif isinstance(value, griffe.ExprCall) and str(value.function) == "Subcategory":
            link = "[its attributes](../configuration.md#attributes)"
            attr.docstring = griffe.Docstring(f"A category: {link} begin with `{attr.name}.`", parent=attr)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Names the members of an enumeration."""
        if cls.docstring and any(str(base).endswith("Enum") for base in cls.bases):
            members = ", ".join(f"`{name}`" for name, member in cls.members.items() if member.is_attribute)
            cls.docstring.value += f"\n\nMembers: {members}."
