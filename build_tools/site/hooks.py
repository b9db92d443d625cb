"""Generates the pages of the site that are not in docs/: the reference, examples, benchmarks and the changes."""

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
# Public modules that `ipu.__all__` does not list, because it lists their names.
_UNLISTED_MODULES = ("multi_worker_strategy", "strategy")
# A link of a page in docs/ to a file or folder outside of it.
_OUTSIDE = re.compile(r"\]\(\.\./(examples/\w+|benchmarks/[\w-]+|CHANGELOG)(?:\.py|\.md|/README\.md|/)?(?=[)#])")
_IDENTIFIER = re.compile(r"[a-z]_[a-z]|[a-z][A-Z]|[A-Z]{2}[a-z]")
# Weights in the search. With weights below 1, these pages are listed after the pages of docs/.
_BOOSTS = {"CHANGELOG": 0.2, "benchmarks": 0.2, "examples": 0.4, "names": 0.5, "notebooks/": 0.5, "reference": 0.5}
# Elements of a notebook that the search ignores: outputs of cells, and the button that copies a cell, which repeats its text.
_UNSEARCHED = re.compile(r'tabindex="0">\n<pre|<(?:span class="notice"|div class="clipboard-copy-txt")')
_SOURCE_STYLE = "<style>:root { color-scheme: light dark } :target { background: #fd06 }</style>"


@cache
def _package() -> griffe.Module:
    return cast(
        "griffe.Module", griffe.load(PACKAGE, search_paths=[ROOT], allow_inspection=False, resolve_aliases=True)
    )


def _members(module: griffe.Module) -> dict[str, griffe.Object | griffe.Alias]:
    """Returns the members in a module's `__all__`, with functions first, because most readers look for them."""
    members = {str(name): module[str(name)] for name in module.exports or ()}
    # If a function has the name of its module, griffe returns the module.
    resolved = {
        name: member[name] if module.imports.get(name) == f"{member.path}.{name}" else member
        for name, member in members.items()
    }
    return dict(sorted(resolved.items(), key=lambda item: not item[1].is_function))


@cache
def _modules() -> dict[str, griffe.Module]:
    """Returns the public modules, including nested ones, by their dotted names below the package."""
    modules: dict[str, griffe.Module] = {}

    def add(name: str, module: griffe.Module) -> None:
        modules[name] = module
        for member_name, member in _members(module).items():
            if member.is_module:
                add(
                    f"{name}.{member_name}".lstrip("."),
                    cast("griffe.Module", member.final_target if isinstance(member, griffe.Alias) else member),
                )

    for name in ("", *_UNLISTED_MODULES):
        add(name, _package()[name] if name else _package())
    return modules


@cache
def _places() -> dict[str, str]:
    """Returns the page and anchor of each public object in the reference, by its canonical path."""
    places = {module.path: f"{name}.md" for name, module in _modules().items() if name}
    # Nested modules are first, so that a name that a package imports from a module is documented in the module.
    for name, module in sorted(_modules().items(), key=lambda item: (-item[0].count("."), item[0])):
        for member in _members(module).values() if name else ():
            places.setdefault(member.canonical_path, f"{name}.md#{member.path}")
    return places


def _rows(module: griffe.Module) -> str:
    rows = ["| name | description |", "| --- | --- |"]
    for name, member in _members(module).items():
        docstring = member.docstring
        summary = docstring.value.split("\n\n")[0].replace("\n", " ").replace("|", "\\|") if docstring else ""
        rows.append(f"| [`{name}`]({_places()[member.canonical_path]}) | {summary} |")
    return "\n".join(rows)


def _reference(name: str, module: griffe.Module) -> str:
    text = module.docstring.value if module.docstring else ""
    members = _members(module).values()
    paths = [member.path for member in members if _places()[member.canonical_path] == f"{name}.md#{member.path}"]
    return "\n\n".join([f"# `ipu.{name}`", text, _rows(module), *(f"::: {path}" for path in paths)])


def _example(file: Path) -> str:
    code = file.read_text()
    docstring = ast.get_docstring(ast.parse(code)) or ""
    return f"# {file.name}\n\n{docstring}\n\n```python\n{code}```\n"


def _listing() -> str:
    """Returns all names of the SDK as a table with a filter."""
    command = [sys.executable, "-m", PACKAGE, "list", "--json"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = ["| name in the SDK | state | here |", "| --- | --- | --- |"]
    for name, state, text in (entry.values() for entry in json.loads(listed)):
        target = text.replace(f"{PACKAGE}.", "ipu.", 1)
        if target in _names():
            target = f"[`{target}`](reference/{_names()[target]})"
        elif target != text:
            target = "the same name, with the compatibility layer"
        rows.append(f"| `{name}` | {state} | {target} |")
    return "\n".join(['<input id="names-filter" type="search" placeholder="Filter, such as: ctc loss">\n', *rows])


@event_priority(100)  # Runs before the plugin for notebooks.
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages and the notebooks to the site."""
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
    config.nav = [expanded for entry in config.nav or () for expanded in _expanded(entry, files)]
    return files


def _expanded(entry: Any, files: Files) -> list[Any]:
    """Returns an entry of the navigation with patterns such as `examples/*` replaced by the pages that match."""
    if isinstance(entry, dict):
        [(title, content)] = entry.items()
        pages = [page for child in _as_list(content) for page in _expanded(child, files)]
        return [{title: pages if isinstance(content, list) or "*" in content else content}] if pages else []
    return [file.src_uri for file in files if fnmatch(file.src_uri, entry)] if "*" in entry else [entry]


def _as_list(entry: Any) -> list[Any]:
    return entry if isinstance(entry, list) else [entry]


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Points links to files outside of docs/ to their generated pages, and inserts the tables of names."""
    if page.file.src_uri == "names.md":
        page.meta["hide"] = ["toc"]  # The table needs the space.
        markdown = markdown.replace("<!-- All names. -->", _listing())
    if page.file.src_uri == "reference.md":
        markdown = markdown.replace("<!-- All names. -->", _rows(_package()).replace("](", "](reference/"))
    markdown = re.sub(r"(?<!\[)`examples/(\w+)\.py`", r"[`\1.py`](../examples/\1.py)", markdown)
    markdown = markdown.replace("](../examples/notebooks/", "](notebooks/")
    markdown = _OUTSIDE.sub(r"](\1.md", markdown)
    # A link whose text is a file name, as on GitHub, gets the title of the page as its text.
    return re.sub(r"\[(\w+\.md)\](?=\(\1[)#])", lambda link: f"[{_title(link.group(1))}]", markdown)


def _title(page: str) -> str:
    return (ROOT / "docs" / page).read_text().partition("\n")[0].removeprefix("# ").partition(":")[0]


@cache
def _names() -> dict[str, str]:
    """Returns the places of names that pages may link to, without names that have several places.

    A name has several spellings: `ipu.feeds.set_wait_limit`, `feeds.set_wait_limit` and `set_wait_limit`.
    """
    found_places: dict[str, set[str]] = {}
    for module_name, module in _modules().items():
        for member_name, member in _members(module).items():
            short = f"{module_name}.{member_name}".lstrip(".")
            spellings = [f"ipu.{short}"]
            if "." in short and not short.startswith("keras"):  # `keras.layers` would mean Keras itself.
                spellings.append(short)
            if _IDENTIFIER.search(member_name):  # A name such as `size` may be an English word.
                spellings.append(member_name)
            for spelling in spellings:
                found_places.setdefault(spelling, set()).add(_places()[member.canonical_path])
    return {spelling: places.pop() for spelling, places in found_places.items() if len(places) == 1}


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Links names in the text to the reference and notebooks to pages of the site, and sets weights for the search."""
    boosts = [boost for path, boost in _BOOSTS.items() if page.file.src_uri.startswith(path)]
    page.meta["search"] = {"boost": boosts[0] if boosts else 1}
    if page.file.src_uri.endswith(".ipynb"):
        html = re.sub(r'<a class="anchor-link".*?</a>', "", html)
        html = _UNSEARCHED.sub(r'\g<0> data-search-exclude="yes"', html)
        html = re.sub(r'href="(\w+)\.ipynb', r'href="\1.html', html)
        return re.sub(r'href="\.\./\.\./docs/(\w+)\.md', r'href="../\1.html', html)

    def link(code: re.Match[str]) -> str:
        place = _names().get(code.group(1).removesuffix("()"))
        target = place and get_relative_url(f"reference/{place.replace('.md', '.html')}", page.url)
        return f'<a href="{target}">{code.group()}</a>' if target else code.group()

    parts = re.split(r"(<(h\d|pre|a)\b.*?</\2>)", html, flags=re.DOTALL)
    # The parts repeat in threes: a text to add links to, an element to keep, and the name of the element's tag.
    return "".join(
        re.sub(r"<code>([\w.]+(?:\(\))?)</code>", link, part) if index % 3 == 0 else part
        for index, part in enumerate(parts)
        if index % 3 < 2
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Writes pages of the source files, for links from the reference, and extends the worker of the search."""
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
    """Documents options of a configuration and members of enumerations, which have no docstrings."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Reads the default and the docstring of an option from `Option(default, meaning)`."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "Option":
            attr.docstring = griffe.Docstring(ast.literal_eval(str(value.arguments[1])), parent=attr)
            attr.value = value.arguments[0]
        elif isinstance(value, griffe.ExprCall) and str(value.function) == "Subcategory":
            link = "[its attributes](../configuration.md#attributes)"
            attr.docstring = griffe.Docstring(f"A category: {link} begin with `{attr.name}.`", parent=attr)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Adds the names of its members to the docstring of an enumeration."""
        if cls.docstring and any(str(base).endswith("Enum") for base in cls.bases):
            members = ", ".join(f"`{name}`" for name, member in cls.members.items() if member.is_attribute)
            cls.docstring.value += f"\n\nMembers: {members}."
