"""The pictures of `mlfs top` and `mlfs report` in docs/, made of a real training through mlfs on a slow source.

    python scripts/screenshots.py [--files 1200] [--epochs 4]

In: nothing; the data set is generated. Out: docs/pictures/top.svg, what a terminal of 80 x 24 shows in the second
epoch, and docs/pictures/report.png, the page at the end as a browser draws it. tmux and chromium-headless-shell are
needed (scripts/setup installs them). Everything else lies in a work directory that is removed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from demo import BATCH_SIZE, RANKS, SCRIPTS, SEED, command, console, end, slow_source, work_directory
from make_dataset import Wanted, make_dataset
from PIL import Image, ImageChops
from rich.console import Console
from rich.text import Text

PICTURES = SCRIPTS.parent / "docs" / "pictures"
COLUMNS, ROWS = 80, 24
PATIENCE_S = 240.0
# The page is drawn higher than it is, and cut where it ends. With so many colours it is a fifth of the size.
PAGE = (860, 3000)
COLOURS = 48


def take(args: argparse.Namespace, work: Path) -> None:
    """Train, and take both pictures."""
    images, data = work / "images", work / "imagenet"
    data.mkdir()
    make_dataset(images, Wanted(args.files, classes=20, kilobytes=110, seed=0), console)
    in_all = args.files * 110 // 1000
    with slow_source(images, data, args):
        caches = ["--ram", f"{in_all // 4}M", "--ssd", f"{work / 'ssd'}:{in_all // 2}M", "--staging", "32M"]
        command("mlfs", "mount", data, *caches)
        try:
            job = f"--seed {SEED} --epochs {args.epochs} --batch-size {BATCH_SIZE} --world-size {RANKS}"
            command("mlfs", "register", data, *job.split(), quiet=True)
            training = subprocess.Popen(
                [Path(sys.executable).parent / "torchrun", "--standalone", "--nproc-per-node", str(RANKS),
                 SCRIPTS / "train_demo.py", data, "--epochs", str(args.epochs)],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            try:
                (PICTURES / "top.svg").write_text(drawn(top_at_the_second_epoch(data, work)), encoding="utf-8")
                _, errors = training.communicate(timeout=PATIENCE_S)
            finally:
                end(training)
            if training.returncode:
                raise SystemExit(f"screenshots: the training failed\n{errors}")
            page = work / "report.html"
            command("mlfs", "report", data, page, quiet=True)
            photograph(page, PICTURES / "report.png", work)
        finally:
            command("mlfs", "unmount", data, "--force", quiet=True)


def top_at_the_second_epoch(data: Path, work: Path) -> str:
    """What `mlfs top` shows, with the codes of its colours, a moment after both ranks have come to the second epoch."""
    tmux = ["tmux", "-S", str(work / "tmux"), "-f", "/dev/null"]
    top = f"{Path(sys.executable).parent / 'mlfs'} top {data}"
    subprocess.run([*tmux, "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), top], check=True)
    try:
        give_up = time.monotonic() + PATIENCE_S
        while min(rank["epoch"] * 10_000 + rank["step"] for rank in ranks_of(data)) < 10_002:
            if time.monotonic() > give_up:
                raise SystemExit("screenshots: the training does not come to its second epoch")
            time.sleep(0.2)
        time.sleep(1.5)  # a whole interval of the screen
        return subprocess.run([*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)


def ranks_of(data: Path) -> list[dict[str, int]]:
    """How far each rank is."""
    ranks: list[dict[str, int]] = json.loads((data / ".mlfs" / "status").read_bytes())["jobs"][0]["ranks"]
    return ranks


def drawn(screen: str) -> str:
    """The screen as SVG, which needs nothing else: rich's picture names fonts of another site."""
    terminal = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    terminal.print(Text.from_ansi(screen.rstrip("\n")))
    return re.sub(r"@font-face \{.*?\}\s*", "", terminal.export_svg(title="mlfs top"), flags=re.DOTALL)


def photograph(page: Path, picture: Path, work: Path) -> None:
    """Have a browser draw the page."""
    browser = shutil.which("chromium-headless-shell")
    if browser is None:
        raise SystemExit("screenshots: there is no chromium-headless-shell; scripts/setup installs it")
    flags = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={work / 'profile'}"]
    size = f"--window-size={PAGE[0]},{PAGE[1]}"
    subprocess.run(
        [browser, *flags, size, f"--screenshot={picture}", f"file://{page}"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    with Image.open(picture) as image:
        shown = image.convert("RGB")
    _, _, _, end_of_page = ImageChops.difference(shown, Image.new("RGB", shown.size, "white")).getbbox() or (0, 0, 0, 1)
    cut = shown.crop((0, 0, PAGE[0], min(PAGE[1], end_of_page + 20)))
    cut.quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the pictures in docs/pictures.")
    parser.add_argument("--files", type=int, default=1200, help="JPEGs of about 110 kB (default: 1200)")
    parser.add_argument("--epochs", type=int, default=4, help="of the training (default: 4)")
    parser.add_argument("--open-latency", default="2ms", help="of the source (default: 2ms)")
    parser.add_argument("--bandwidth", default="25M", help="of the source, bytes/s for all reads (default: 25M)")
    args = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with work_directory(keep=False) as work:
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        take(args, work)
    for picture in sorted(PICTURES.iterdir()):
        console.print(f"{picture}: {picture.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
