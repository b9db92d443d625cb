"""The site builds without warnings, has all public names and no dead links, and works in a browser."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

import tensorflow_ipu as ipu
import tensorflow_ipu.multi_worker_strategy
import tensorflow_ipu.strategy

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("index.html", "how_do_i.html", "keras.html", "names.html", "reference/feeds.html")
# Texts for the search, and a page among the first three results. Each prefix of a word has results.
SEARCHES = {
    **{"tensorflow"[:end]: "" for end in range(1, 11)},
    "IPUInfeedQueue": "reference/feeds",
    "precompiled_user_op": "reference/ops.custom_ops",
    "set_pipelining_options": "reference/keras",
    "ipu.utils": "names",
    "create_ipu_config": "names",
    "TensorFlow 1 sessions": "porting",
    "compiled again": "how_do_i",
    "profile a step": "how_do_i",
    "NaN float16": "how_do_i",
    "exit code": "command_line",
    "Jupyter": "notebooks",
    "last batch": "how_do_i",
    "checkpoint": "how_do_i",
    "Ctrl-C": "feeds",
    "poprun --num-instances 2 --num-replicas 4 python train.py": "how_do_i",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # `--strict` rejects pages outside of the navigation and dead links. `--quiet` would hide the warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # The theme announces its successor in a colored message.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONSAFEPATH": ""}
    built = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder


def links(page: Path) -> set[str]:
    text = re.sub(r'srcdoc="[^"]*"', "", page.read_text())  # Pages in the frames of a notebook have their own links.
    return {unquote(link) for link in re.findall(r'(?:href|src)="?([^" >]+)', text)}


def test_every_link_leads_to_a_file_and_a_place_in_it(site: Path) -> None:
    ids = functools.cache(lambda page: {"", *re.findall(r'\bid="?([^" >]+)', page.read_text())})
    dead = []
    for page in site.rglob("*.html"):
        for link in links(page):
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link) or page.name == "404.html":  # A server shows this page at any address.
                continue
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (target.suffix == ".html" and anchor not in ids(target)):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert not dead


def public(module: ModuleType, name: str) -> Iterator[tuple[str, str]]:
    """Yields the names in `__all__` of a module and of the modules in that list, each with its module."""
    for member in module.__all__:
        yield name, member
        if isinstance(getattr(module, member), ModuleType):
            yield from public(getattr(module, member), f"{name}.{member}".lstrip("."))


def test_every_public_name_has_a_place_in_the_reference(site: Path) -> None:
    names = [*public(ipu, ""), *public(tensorflow_ipu.multi_worker_strategy, "multi_worker_strategy")]
    assert len(names) > 300
    missing = []
    for module, name in names:
        text = (site / "reference" / f"{module}.html" if module else site / "reference.html").read_text()
        link = re.search(rf'<a href="([^"]+)"><code>{name}</code></a>', text)
        # A module has a page; other names have a heading.
        if link is None or not re.search(rf"\b{name}(\.html)?$", link.group(1)):
            missing.append(f"{module}.{name}")
    assert not missing


def test_search_knows_the_cells_of_notebooks_once_and_not_what_they_print(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    for file in (ROOT / "examples" / "notebooks").glob("*.ipynb"):
        texts = "".join(entry["text"] for entry in index if entry["location"].startswith(f"notebooks/{file.stem}.html"))
        cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
        assert len(re.findall(r"<pre>(?!<code>)", texts)) == len(cells), texts
        assert "Copied!" not in texts


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("there is no Chromium with its driver: `apt-get install chromium chromium-driver`")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for option in (
        *("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-dev-shm-usage"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
        "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # Requests to other hosts are errors in the console.
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(f"--{option}")
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    timeout = 1.0  # Browsers open connections in advance, and each occupies a thread.

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(params=["file", "http"])
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    if request.param == "file":
        yield site.as_uri()
        return
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def links_found(browser: Chrome, text: str) -> list[str]:
    """Types a text into the search of the open page, and returns the links that it shows."""
    from selenium.webdriver.support.wait import WebDriverWait

    script = """
        const [box] = document.getElementsByClassName("md-search__input");
        box.focus();
        box.value = arguments[0];
        box.dispatchEvent(new KeyboardEvent("keyup"));
        return [...document.querySelectorAll("a.md-search-result__link")].map((link) => link.href);
    """
    wait = WebDriverWait(browser, 60, poll_frequency=0.02)
    wait.until(lambda _: not browser.execute_script(script, ""))
    return wait.until(lambda _: browser.execute_script(script, text), f"nothing is found by: {text}")


def test_pages_work_in_a_browser_on_a_phone_and_from_a_folder(browser: Chrome, address: str) -> None:
    from selenium.webdriver.common.by import By

    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    for page in PAGES:
        browser.get(f"{address}/{page}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, page
        assert browser.get_log("browser") == [], page

    for text, page in SEARCHES.items():
        links = [link.removeprefix(f"{address}/").partition(".html")[0] for link in links_found(browser, text)]
        assert page in ["", *list(dict.fromkeys(links))[:3]], f"{text}: {links}"

    browser.get(f"{address}/names.html")
    browser.find_element(By.ID, "names-filter").send_keys("ctc loss_v2")
    rows = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "article tbody tr") if row.is_displayed()]
    assert [row.split()[0] for row in rows] == ["ipu.ops.nn_ops.ctc_loss_v2"]
    assert browser.get_log("browser") == []
