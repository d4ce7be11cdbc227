"""`mlfs report`: the page shows the numbers of the status in a real browser, needs nothing else, and overwrites no file
that is no page."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_support import Mounts
from test_cli_status import STATUS

from mlfs import report
from mlfs.cli import main as cli
from mlfs.errors import ExitCode
from mlfs.report import page

NASTY = "<script>document.title='taken'</script> & \x1b[31m \udcff"


def told(epochs: int) -> dict[str, Any]:
    """The status of a mount whose job has read so many epochs, each half as slow as the one before."""
    status = copy.deepcopy(STATUS)
    status["epochs"] = [
        {
            "reads": {
                "page_cache": {"reads": 100 * epoch, "bytes": 1},
                "pfs": {"reads": 100 * (epochs - epoch), "bytes": 1},
            },
            "stalls": {},
        }
        for epoch in range(epochs)
    ]
    status["jobs"][0] |= {
        "time_by_epoch": {
            str(epoch): {
                "reading_s": 100 / 2**epoch,
                "stalled_s": 4.0,
                "waited_share": 0.25 / (epoch + 1),
                "samples": 1000,
            }
            for epoch in range(epochs)
        },
        "agreement_by_epoch": {str(epoch): {"agreement": 0.5 + 0.1 * min(epoch, 5)} for epoch in range(epochs)},
        "pfs_bytes_by_epoch": {str(epoch): (epochs - epoch) << 30 for epoch in range(epochs)},
        "found_out": ["the script never calls set_epoch"],
        "spec": {"sampler": "torch-distributed", "seed": 7, "root": "", "drop_last": False, "ranks": [0, 3]},
    }
    status["rates"] = {
        "pfs": {"measured": [[1, 5e7], [4, 1.2e8]], "calibrated": [], "refined": []},
        "ram": {"measured": [], "calibrated": [[1, 2e9]], "refined": []},
    }
    return status


def in_a_browser(directory: Path, text: str, *flags: str) -> str:
    """What a browser makes of the page: the document after it was loaded and its scripts have run."""
    file = directory / "page.html"
    file.write_text(text, encoding="utf-8")
    browser = shutil.which("chromium-headless-shell")
    assert browser is not None, "scripts/setup installs it"
    command = [
        browser,
        "--no-sandbox",
        "--disable-gpu",
        *flags,
        f"--user-data-dir={directory}/profile",
        f"file://{file}",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_table_of_loaders_has_all_parts_of_their_time_and_no_worker_where_the_training_process_loads() -> None:
    status = told(3)
    load = status["jobs"][0]["load"]
    head = "<th>a worker waits for a batch</th><th>preprocesses it</th><th>hands it over</th><th>is idle</th>"
    cells = [f'<td class="number">{cell}</td>' for cell in ("3", "1 ms", "300 ms", "20 ms", "0 s")]
    shown = page(status, "")
    assert head in shown
    assert f"<td>rank 2</td>{''.join(cells)}" in shown
    assert "loads in its training process" not in shown
    load["ranks"]["2"] |= {"reader_trains": True, "workers": 1}
    shown = page(status, "")
    assert '<td>rank 2</td><td class="number">0</td>' in shown
    assert "A rank of 0 workers loads in its training process" in shown


def test_what_the_auditor_saw_of_each_epoch_is_there() -> None:
    epochs = [
        {"epoch": 0, "by_none": 0, "by_one": 999, "by_several": 1, "shuffled": 0.25, "fewest": 499, "most": 501},
        {"epoch": 1, "by_none": 1000, "by_one": 0, "by_several": 0, "shuffled": 1.0, "fewest": 0, "most": 0},
    ]
    seen = {"run": 7, "ranks": 2, "readers": 4, "samples": 1000, "epochs": epochs, "unjudged": ["<why>"]}
    shown = page(told(3) | {"audit": {"jobs": [seen]}}, "")
    assert "<h3>process 7: 2 ranks, 4 processes, 1,000 samples</h3>" in shown
    padding = "(samplers may repeat or drop 1 for 2 equal ranks)"
    said = f"999 samples were read by one rank, 1 by several {padding}; shuffled by 25.0 %; 499 to 501 reads a rank"
    assert f"<li>epoch 0 (not over): {said}</li>" in shown
    assert f"0 samples were read by one rank, 1,000 by none {padding}; shuffled by 100.0 %" in shown
    assert "<li>not judged: &lt;why&gt;</li>" in shown


def test_how_uneven_ranks_are_is_left_out_where_no_two_were_seen_and_is_said_to_be_of_this_node() -> None:
    status = told(3)
    status["jobs"][0]["spec"]["world_size"] = 8
    assert "are uneven (imbalance 40.0 %) of this node&#x27;s ranks; others are not seen." in page(status, "")
    status["jobs"][0]["load"] |= {"imbalance": None, "imbalanced_steps": None, "steps": 0}
    shown = page(status, "")
    assert "uneven" not in shown
    assert "<td>rank 2</td>" in shown


def test_a_browser_shows_it(tmp_path: Path) -> None:
    status = told(3)
    status["mountpoint"] = f"/data/{NASTY}"
    shown = in_a_browser(tmp_path, page(status, "2026-11-22 12:00"), "--dump-dom")
    assert "<title>mlfs: /data/&lt;script&gt;" in shown  # no script has changed it
    assert shown.count("<svg") == 5
    for text in (
        "without waiting",
        "page cache",
        "the script never calls set_epoch",
        "25.0 %",
        "Of the last 64 steps 25.0 % are uneven (imbalance 40.0 %).",
        "seed 7, drop-last no, ranks 0 3</p>",
        "ssd:/scratch",
    ):
        assert text in shown, text
    assert not re.search(r"""(?:src|href)=["'](?!#)""", shown), "it needs something else"


def test_a_browser_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    in_a_browser(tmp_path, page(told(12), "today"), f"--screenshot={picture}", "--window-size=1000,2200")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000  # a blank page of that size has 6 kB


def once(draw: Callable[..., str]) -> Callable[..., str]:
    """The same, but that a picture of the same numbers is drawn once: each takes some hundredths of a second."""
    drawn: dict[str, str] = {}

    def draw_once(*numbers: object) -> str:
        key = repr(numbers)
        if key not in drawn:
            drawn[key] = draw(*numbers)
        return drawn[key]

    return draw_once


@pytest.mark.parametrize("epochs", [0, 1, 100])
def test_any_number_of_epochs(epochs: int) -> None:
    status = told(epochs)
    text = page(status, "today")
    assert text.count("<svg") == (5 if epochs else 1)
    assert len(text) < 400_000
    assert text == page(status, "today")  # the same numbers give the same page


def test_what_a_status_does_not_say_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for draw in (
        report.times_svg,
        report.reads_svg,
        report.source_bytes_svg,
        report.agreement_svg,
        report.bandwidths_svg,
    ):
        monkeypatch.setattr(report, draw.__name__, once(draw))
    for key in STATUS:
        status = {name: value for name, value in told(2).items() if name != key}
        assert "</html>" in page(status, "today"), key
    assert "nothing was read yet" in page({}, "today")


def test_the_command(open_dir: Path, tiny: Mounts, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (open_dir / "m").mkdir()
    tiny.start(open_dir / "m")
    out = tmp_path / "out.html"
    assert cli.main(["report", str(open_dir / "m"), str(out)]) == ExitCode.OK
    assert str(open_dir / "m") in out.read_text()
    assert cli.main(["report", str(open_dir / "m"), str(out)]) == ExitCode.OK  # a page may be replaced by a page
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for bad in (notes, tmp_path, tmp_path / "none" / "x.html"):
        assert cli.main(["report", str(open_dir / "m"), str(bad)]) == ExitCode.USAGE
    assert notes.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
    assert cli.main(["report", str(tmp_path), str(out)]) == ExitCode.NOT_MOUNTED
    capsys.readouterr()


def test_it_waits_for_the_end_of_a_mount(
    open_dir: Path, tiny: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.cli.report.LOOK_EVERY_S", 0.05)
    (open_dir / "m").mkdir()
    process = tiny.start(open_dir / "m")
    out = tmp_path / "out.html"
    waiting = threading.Thread(target=cli.main, args=(["report", str(open_dir / "m"), str(out), "--wait"],))
    waiting.start()
    time.sleep(0.5)
    assert not out.exists()
    tiny.kill(process)
    waiting.join(30)
    assert "</html>" in out.read_text()
