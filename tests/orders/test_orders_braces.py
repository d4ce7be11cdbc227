"""The layout "braces": lists of shards as webdataset's users write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from orders_support import job, make_file, manifest_of

from mlfs.errors import JobError
from mlfs.orders.layouts import samples
from mlfs.orders.layouts.braces import expanded


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [  # what braceexpand 0.1.7 makes of them
        ("item{1..3}", ["item1", "item2", "item3"]),
        ("{a..c}", ["a", "b", "c"]),
        ("index.html{,.backup}", ["index.html", "index.html.backup"]),
        ("python{2.{5..7},3.{2,3}}", ["python2.5", "python2.6", "python2.7", "python3.2", "python3.3"]),
        ("{07..10}", ["07", "08", "09", "10"]),
        ("{a..g..2}", ["a", "c", "e", "g"]),
        ("{4..1}", ["4", "3", "2", "1"]),
        ("{2..-1}", ["2", "1", "0", "-1"]),
        ("{1..7..3}", ["1", "4", "7"]),
        ("{c..a}", ["c", "b", "a"]),
        (r"{1\{2,3}", ["1{2", "3"]),
        ("{x}", ["{x}"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("a::b{1,2}::c", ["a", "b1", "b2", "c"]),
    ],
)
def test_a_pattern_stands_for_what_webdataset_makes_of_it(pattern: str, texts: list[str]) -> None:
    assert list(expanded(pattern)) == texts


def test_the_samples_are_the_files_in_that_order(tmp_path: Path) -> None:
    for name in ("b/1.tar", "b/0.tar", "a.tar", "other"):
        make_file(tmp_path, name)
    tree = manifest_of(tmp_path)
    found = samples(job(layout="braces", pattern="b/{0..1}.tar::a.tar"), tree)
    assert [tree.path(entry) for entry in found] == [b"b/0.tar", b"b/1.tar", b"a.tar"]


@pytest.mark.parametrize(
    ("pattern", "said"), [("{0..2}.tar", "'2.tar' is not a file"), ("{0..1.tar", "not closed"), (None, "is missing")]
)
def test_a_pattern_that_names_no_files_is_refused(tmp_path: Path, pattern: str | None, said: str) -> None:
    for name in ("0.tar", "1.tar"):
        make_file(tmp_path, name)
    with pytest.raises(JobError, match=said) as caught:
        samples(job(layout="braces", pattern=pattern), manifest_of(tmp_path))
    assert caught.value.field == "pattern"
