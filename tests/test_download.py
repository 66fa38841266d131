"""Downloads, against a real server on the loopback interface that misbehaves on request."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isles
from isles.data import download, sources

CONTENT = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; each request takes the next of `faults`, and is noted in `requests`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/file": CONTENT}
        self.faults: list[str] = []
        self.requests: list[str] = []  # the range asked for, "" for all
        self.ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.server.requests.append(asked)
        fault = self.server.faults.pop(0) if self.server.faults else ""
        content = self.server.files.get(self.path)
        if content is None or fault.isdigit():
            self.send_error(int(fault or 404))
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        if fault == "wrong":
            content = content[:-1] + b"?"
        if fault == "another range":
            start -= 1
        self.send_response(206 if asked and self.server.ranges else 200)
        if fault != "no length":
            self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(
            content[start : start + 100_000] if fault in ("truncated", "no length") else content[start:]
        )

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def get(path: Path, *urls: str, **changes: Any) -> None:
    download.download(urls, path, **{"sha256": SHA256, "size": len(CONTENT), **changes})


def left(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir() if not file.name.endswith(".lock"))


def test_the_right_file(server: Server, path: Path) -> None:
    get(path, server.url + "file")
    assert path.read_bytes() == CONTENT and left(path) == ["file"] and server.requests == [""]
    get(path, server.url + "file")
    assert server.requests == [""]  # what is there is not fetched again


def test_a_wrong_checksum(server: Server, path: Path) -> None:
    with pytest.raises(isles.data.DownloadError, match=rf"file: has the SHA-256 {SHA256}, not 0{{64}}"):
        get(path, server.url + "file", sha256="0" * 64)
    assert left(path) == [] and len(server.requests) == 1  # asking again would give the same


def test_a_wrong_size(server: Server, path: Path) -> None:
    with pytest.raises(isles.data.DownloadError, match=r"has 300000 bytes, not the 300001 of the file wanted"):
        get(path, server.url + "file", size=len(CONTENT) + 1)
    assert left(path) == []


def test_the_next_mirror_where_one_has_another_file(server: Server, path: Path) -> None:
    server.faults = ["wrong"]
    get(path, server.url + "file", server.url + "file")
    assert path.read_bytes() == CONTENT and server.requests == ["", ""]


@pytest.mark.parametrize("fault", ["truncated", "no length"])
def test_a_truncated_transfer_is_resumed(server: Server, path: Path, fault: str) -> None:
    server.faults = [fault, "truncated"]
    get(path, server.url + "file")
    assert path.read_bytes() == CONTENT
    assert server.requests == ["", "bytes=100000-", "bytes=200000-"]


def test_a_server_without_ranges_is_asked_for_all_again(server: Server, path: Path) -> None:
    server.faults, server.ranges = ["truncated"], False
    get(path, server.url + "file")
    assert path.read_bytes() == CONTENT and server.requests == ["", "bytes=100000-"]


def test_a_transfer_that_stays_truncated(server: Server, path: Path) -> None:
    server.faults, server.ranges = ["truncated"] * 3, False
    with pytest.raises(isles.data.DownloadError, match=r"broke off after 100000 of 300000 bytes|IncompleteRead"):
        get(path, server.url + "file")
    assert left(path) == ["file.part"]
    server.ranges = True
    get(path, server.url + "file")  # a later call goes on from there
    assert path.read_bytes() == CONTENT and server.requests[-1] == "bytes=100000-" and left(path) == ["file"]


@pytest.mark.parametrize("part", [b"stale", b"stale" * 60_000, b"stale" * 70_000])
def test_a_part_of_something_else_is_thrown_away(server: Server, path: Path, part: bytes) -> None:
    path.with_name("file.part").write_bytes(part)
    get(path, server.url + "file")
    assert path.read_bytes() == CONTENT and server.requests[-1] == ""


def test_a_part_longer_than_the_servers_file(server: Server, path: Path) -> None:
    server.files["/short"] = CONTENT[:1000]
    path.with_name("file.part").write_bytes(CONTENT[:2000])
    get(path, server.url + "short", server.url + "file")
    assert path.read_bytes() == CONTENT


def test_an_answer_with_another_range(server: Server, path: Path) -> None:
    path.with_name("file.part").write_bytes(CONTENT[:1000])
    server.faults = ["another range"]
    get(path, server.url + "file")
    assert path.read_bytes() == CONTENT and server.requests == ["bytes=1000-", ""]


def test_not_found(server: Server, path: Path) -> None:
    with pytest.raises(isles.data.DownloadError, match=r"nothing: HTTP Error 404: Not Found"):
        get(path, server.url + "nothing")
    assert len(server.requests) == 1 and left(path) == []
    get(path, server.url + "nothing", server.url + "file")
    assert path.read_bytes() == CONTENT


def test_a_passing_fault_of_the_server(server: Server, path: Path) -> None:
    server.faults = ["503", "429"]
    get(path, server.url + "file")
    assert path.read_bytes() == CONTENT and len(server.requests) == 3


def test_a_server_that_is_down(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        url = server.url
    with pytest.raises(isles.data.DownloadError, match=r"one: .*refused.*; .*two: .*refused"):
        get(path, url + "one", url + "two")
    assert left(path) == []


def test_a_folder_that_cannot_be_written(server: Server, path: Path) -> None:
    path.with_name("file.part").mkdir()
    with pytest.raises(isles.data.DownloadError, match=r"file\.part cannot be written .*ISLES_CACHE"):
        get(path, server.url + "file")
    assert len(server.requests) == 1


def test_processes_wait_for_one_another(server: Server, path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from isles.data import download\n"
        "download.download([sys.argv[1]], Path(sys.argv[2]), sha256=sys.argv[3], size=int(sys.argv[4]))"
    )
    command = [sys.executable, "-c", code, server.url + "file", str(path), SHA256, str(len(CONTENT))]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert path.read_bytes() == CONTENT and server.requests == [""]


def test_progress_is_shown_when_asked_for(server: Server, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    get(path, server.url + "file")
    assert capsys.readouterr().err == ""
    path.unlink()
    get(path, server.url + "file", progress=True)
    shown = capsys.readouterr()
    assert "file" in shown.err and "300.0/300.0 kB" in shown.err and shown.out == ""


@pytest.fixture
def table(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A table of the form of the Australian credit data, on the server under the UCI's name; nothing at hand."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 50, (690, 14)), np.arange(690) % 2])
    content = "".join(" ".join(map(str, row)) + "\n" for row in rows.tolist()).encode()
    server.files["/australian.dat"] = content
    file = sources.File((server.url + "australian.dat",), hashlib.sha256(content).hexdigest(), len(content))
    monkeypatch.setitem(sources.FILES, "australian.dat", file)
    monkeypatch.delenv("ISLES_DATA", raising=False)
    monkeypatch.setenv("ISLES_CACHE", str(tmp_path / "cache"))
    return content


def test_load_downloads_to_the_cache(server: Server, table: bytes, tmp_path: Path) -> None:
    data = isles.data.load("australian")
    assert data.x_train.shape == (690, 15) and data.y_train.tolist() == [0, 1] * 345
    assert (tmp_path / "cache" / "data" / "australian.dat").read_bytes() == table
    server.files.clear()
    assert len(isles.data.load("australian").x_train) == 690


@pytest.mark.skipif("ISLES_DATA" not in os.environ, reason="ISLES_DATA is not set")
def test_the_published_checksum_accepts_the_published_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (Path(os.environ["ISLES_DATA"]) / "australian.csv").read_text().splitlines()[1:]
    server.files["/australian.dat"] = "".join(line.replace(",", " ") + "\n" for line in lines).encode()
    file = dataclasses.replace(sources.FILES["australian.dat"], urls=(server.url + "australian.dat",))
    monkeypatch.setitem(sources.FILES, "australian.dat", file)
    monkeypatch.delenv("ISLES_DATA")
    monkeypatch.setenv("ISLES_CACHE", str(tmp_path / "cache"))
    assert np.bincount(isles.data.load("australian").y_train).tolist() == [383, 307]


def test_load_names_the_three_ways_when_nothing_works(server: Server, table: bytes, tmp_path: Path) -> None:
    server.files.clear()
    cache = re.escape(str(tmp_path / "cache" / "data"))
    with pytest.raises(
        FileNotFoundError,
        match=rf"'australian' is not at hand: ISLES_DATA is not set.*\(1\) set ISLES_DATA to a folder with "
        rf"australian\.csv, or australian\.dat; \(2\) put the same into {cache}; \(3\) connect.*404: Not Found",
    ):
        isles.data.load("australian")


def test_the_cache_cannot_be_made(table: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISLES_CACHE", str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError, match=r"cannot be made .*set ISLES_CACHE to a folder to write to"):
        isles.data.load("australian")


def test_sources_are_a_plain_table() -> None:
    for name, file in sources.FILES.items():
        assert file.urls and all(
            re.fullmatch(r"https?://[\w./~-]+", url) and url.endswith(name) for url in file.urls
        )
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256) and file.bytes > 0
        assert file.urls[0].startswith("https://")
