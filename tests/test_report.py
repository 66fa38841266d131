"""The page about a run, and the one that follows a run: well-formed, self-contained, true, fit for a browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isles
from isles import tasks
from isles.cli import main
from isles.reports import live
from isles.reports.html import Figure, Page, Table
from isles.reports.page import _last as last
from isles.samplers.block import Status
from isles.store.folder import RunFolder, Saved
from test_cli import error_of

HERE = Path(__file__).parent
SAMPLER = isles.SMC(isles.HMC(leapfrogs=2), particles=8, mutations=2)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser here; install one: apt-get install chromium"
)


class Checker(HTMLParser):
    """A strict reader of a page: what opens is closed, in order."""

    VOID = ("meta", "br", "hr", "img", "input", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check(text: str) -> Checker:
    """What every page has to be."""
    page = Checker(text)
    assert len(text.encode()) < 5_000_000
    for outside in ("http://", "https://", "src=", "@import", "url(http", "<script"):
        assert outside not in text, outside
    assert page.all("svg")
    for svg in page.all("svg"):
        assert svg["role"] == "img" and svg["aria-label"]
    assert len(set(page.ids)) == len(page.ids)
    for _, attributes in page.tags:
        for name in ("href", "xlink:href"):
            reference = attributes.get(name) or "data:"
            assert reference.startswith("data:") or reference[1:] in page.ids, reference
    return page


def rows(text: str) -> dict[str, list[str]]:
    """Of all tables, by their first cell."""
    found = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    return {name: re.findall(r"<td>(.*?)</td>", cells) for name, cells in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    command = ["run", "digits", "--model", "logistic", "--train", "40", "--prior-std", "0.3", "--engine", "serial"]
    small = ["--islands", "2", "--particles", "8", "--mutations", "2", "--leapfrogs", "2"]
    assert main([*command, *small, "--folder", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: Any) -> Path:
    x = isles.data.load("digits").x_test
    ood = tmp_path_factory.mktemp("ood") / "ood.npz"
    np.savez(ood, x=np.random.default_rng(0).permuted(x.reshape(len(x), -1), axis=1))
    assert main(["report", str(folder), "--data", "digits", "--ood", str(ood), "--title", "<Digits>"]) == 0
    return folder / "report.html"


@pytest.fixture
def under_way(tmp_path: Path, monkeypatch: Any) -> Path:
    """Of three blocks, the second is at stage 2 since second 1000."""
    monkeypatch.chdir(HERE)
    tasks.define_run(tmp_path, "named_problems:hills", SAMPLER, islands=5, islands_per_block=2)
    save(tmp_path, stage=2, tempering=0.125, at=1000.0)
    return tmp_path


def save(folder: Path, *, stage: int, tempering: float, at: float) -> None:
    """A checkpoint of block 1, with the trace that leads there."""
    place = RunFolder(folder).block(1)
    place.path.mkdir(parents=True, exist_ok=True)
    temperings = tempering / 2.0 ** np.arange(stage)[::-1]
    names = ("ess", "acceptance", "step_size", "log_likelihood")
    place.write_trace(
        [{"tempering": np.full(2, t), **{n: np.array([4.0, np.nan]) for n in names}} for t in temperings]
    )
    place.save(Saved({"x": np.zeros(1)}, {}), Status(0.25, stage, tempering, 4.0, 0.6, 1234)._asdict())
    for file in place.path.glob("state-*.json"):
        os.utime(file, (at, at))


# --- the report -----------------------------------------------------------------------------------------------


def test_the_report_is_one_file_that_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    found = check(text)
    assert "".join(found.words).count("<Digits>") == 2  # escaped in title and heading
    titles = [svg["aria-label"].partition(":")[0] for svg in found.all("svg")]
    assert titles == [
        "reliability", "entropies", "selective accuracy", "most certain inputs", "least certain inputs",
        "island weights", "log evidence of each island",
        "tempering", "effective sample size", "acceptance", "step size", "log-likelihood",
    ]  # fmt: skip


def test_the_report_says_what_the_run_says(page: Path, folder: Path) -> None:
    shown = rows(page.read_text())
    posterior, data = isles.load(folder), isles.data.load("digits")
    facts = json.loads((folder / "run.json").read_text())
    accuracy = (posterior.predict(data.x_test).probabilities.argmax(axis=1) == data.y_test).mean()
    assert shown["accuracy"] == [f"{accuracy:.4g}"]
    assert shown["log evidence"] == [f"{posterior.log_evidence:.4g}"]
    assert shown["problem"] == [facts["problem"]["reference"].replace("&", "&amp;")]
    assert f"jax {facts['versions']['jax']}" in shown["versions"][0]
    assert facts["machine"]["processor"] in shown["machine"][0]
    assert shown["parameters"] == ["650 in 2 arrays"]
    islands, state, done, epochs, seconds = shown["0"]
    assert (islands, state, done, epochs) == ("0 to 1", "finished", "100%", f"{posterior.epochs.total:,}")
    assert re.fullmatch(r"[\d.]+ (s|min)", seconds)


@pytest.mark.filterwarnings("ignore::isles.checks.IslesWarning")
def test_a_regression_and_chains_have_their_own_page(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(HERE)
    import named_problems

    posterior = isles.sample(
        named_problems.curve(), isles.MCMC(isles.HMC(leapfrogs=2), chains=4, burn_in=50), islands=2, progress=False
    )
    x = np.linspace(-1, 1, 9)[:, None]
    found = check(isles.report(posterior, tmp_path / "a.html", test=(x, np.sin(3 * x[:, 0]))).read_text())
    titles = [svg["aria-label"].partition(":")[0] for svg in found.all("svg")]
    assert titles == ["intervals", "acceptance", "step size", "log-likelihood"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ood", "x.npz"], "add --test or --data"),
        (["--port", "80"], "--port is for --live"),
        (["--live", "--data", "digits"], "--data is for a finished run"),
        (["--test", "nowhere.npz"], "cannot read nowhere.npz"),
        (["--data", "digits", "--ood", "nowhere.npz"], "cannot read nowhere.npz"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, folder: Path, capsys: Any) -> None:
    assert message in error_of(capsys, "report", str(folder), *arguments, code=2)


def test_a_run_that_is_not_finished_has_no_report_yet(under_way: Path, capsys: Any) -> None:
    assert "isles resume" in error_of(capsys, "report", str(under_way), code=3)
    assert "holds no run" in error_of(capsys, "report", "--live", str(HERE), code=1)


def test_captions_take_each_islands_own_last_stage() -> None:
    trace = {"acceptance": np.array([[0.9, 0.9], [0.2, 0.4], [np.nan, 0.8]])}
    assert last(trace, "acceptance") == "0.5"


def test_text_is_escaped() -> None:
    page = Page("<a>")
    page.verdict("look", "a & b", ["<script>"])
    page.add("x < y", Table(["<", ">"], [["&", "<b>"]]))
    page.add("x < y", Figure.drawn('"quoted" <title>', "a <note>", lambda ax: ax.plot([1, 2])))
    assert check(page.render()).all("svg")[0]["aria-label"] == '"quoted" <title>: a <note>'


# --- while a run goes on --------------------------------------------------------------------------------------


def test_the_live_page_tells_how_far_a_run_is(under_way: Path) -> None:
    """Tempering doubles in a stage of 10 s: from 1/4, two more stages, for this block and for two that wait."""
    watch = live.Watch(under_way)
    first = watch.page(now=1000.0).render()
    page = check(first)
    assert ("meta", {"http-equiv": "refresh", "content": str(live.REFRESH)}) in page.tags
    assert "0 of 3 blocks finished, about 10% of the work done. Its end can be estimated after" in first
    assert rows(first)["1"][:4] == ["2 to 3", "under way", "25%", "2"]
    save(under_way, stage=3, tempering=0.25, at=1010.0)
    # begun at 1000 and 20 s left at 1010: 30 s in all, as each of the others will take
    assert "About 80.0 s left" in watch.page(now=1010.0).render()
    assert "About 75.0 s left" in watch.page(now=1015.0).render()


def test_traces_of_blocks_stand_side_by_side(under_way: Path) -> None:
    from isles.reports.folder import read_traces
    from isles.store.status import read_status

    with open(RunFolder(under_way).block(1).path / "trace.jsonl", "a") as file:
        file.write('{"tempering": [0.2')  # being written
    trace = read_traces(under_way, read_status(under_way).blocks).trace
    np.testing.assert_array_equal(trace["tempering"][:, 2:4], [[0.0625, 0.0625], [0.125, 0.125]])
    assert np.isnan(trace["tempering"][:, [0, 1, 4]]).all() and np.isnan(trace["ess"][:, 3]).all()


def test_a_finished_run_asks_for_no_more_refreshing(folder: Path) -> None:
    text = live.Watch(folder).page().render()
    check(text)
    assert "The run is finished" in text and "http-equiv" not in text


@pytest.fixture
def server(under_way: Path) -> Iterator[Any]:
    with live.serve(under_way) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: Any, path: str = "/", method: str = "GET", host: str | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


def test_the_server_gives_that_page_to_this_machine_and_nothing_else(server: Any) -> None:
    assert server.server_address[0] == "127.0.0.1"
    response: Any = ask(server)
    assert response.status == 200
    check(response.body.decode())
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert response.headers["Cache-Control"] == "no-store"
    assert ask(server, method="HEAD").body == b""  # type: ignore[attr-defined]
    for path in ("/run.json", "/../run.json", "/?x", "/index.html"):
        assert ask(server, path).status == 404
    assert ask(server, host="elsewhere.example").status == 403
    assert ask(server, method="POST").status == 501


def test_a_port_in_use_is_said(server: Any, under_way: Path, capsys: Any) -> None:
    message = error_of(capsys, "report", "--live", str(under_way), "--port", str(server.server_port), code=1)
    assert f"port {server.server_port} cannot be used: Address already in use; give another" in message


def test_the_command_serves_until_ctrl_c(under_way: Path) -> None:
    command = [sys.executable, "-m", "isles", "report", "--live", str(under_way)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address), address
        with urllib.request.urlopen(address) as response:
            check(response.read().decode())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0 and "Traceback" not in err, err
    finally:
        process.kill()
        process.communicate()


# --- in a real browser ----------------------------------------------------------------------------------------


def browse(address: str, profile: Path, *options: str) -> str:
    """The page as a browser understands it."""
    assert CHROMIUM is not None
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *quiet]
    done = subprocess.run(
        [*command, f"--user-data-dir={profile}", *options, "--dump-dom", address],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_the_report_fits_the_screen(width: int, page: Path, tmp_path: Path) -> None:
    """The browser measures it: no sideways scrolling, and no picture without a size."""
    measure = """<script>
    const sizes = [...document.querySelectorAll("svg")].map((svg) => svg.getBoundingClientRect());
    document.documentElement.dataset.measured = JSON.stringify({
      width: innerWidth, needed: document.documentElement.scrollWidth,
      pictures: sizes.length, drawn: sizes.filter((size) => size.width > 200 && size.height > 50).length });
    </script></body>"""
    copy = tmp_path / "page.html"
    copy.write_text(page.read_text().replace("</body>", measure))
    dom = browse(copy.as_uri(), tmp_path / "profile", f"--window-size={width},900")
    found = re.search(r'data-measured="(.*?)"', dom)
    assert found, dom[:500]
    measured = json.loads(found[1].replace("&quot;", '"'))
    assert measured["needed"] <= measured["width"], measured
    assert measured["pictures"] == measured["drawn"] == 12


@needs_browser
def test_a_browser_shows_the_live_page(server: Any, tmp_path: Path) -> None:
    dom = browse(f"http://127.0.0.1:{server.server_port}/", tmp_path / "profile")
    assert "0 of 3 blocks finished" in dom and dom.count("<svg") == 5
