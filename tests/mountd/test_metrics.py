"""The table of docs/metrics.md, the metrics of a mount and the dashboard: each knows what the others know."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from made_up import engine, job, load, mount
from prometheus_client.parser import text_string_to_metric_families

from mlfs.plan.scheduler.reading_times import ReadingTime
from mountd.metrics import metrics, metrics_of
from mountd.statistics import About, MountStatistics

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `(mlfs_\w+)` \| (\w+) \| ([\w1]+) \|((?: `\w+`)*) \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"\bmlfs_\w+")
METRICS = metrics_of(mount(engine(job(), reading={"train": ReadingTime(10.0, 1.5)})))


def exported(now: MountStatistics) -> dict[str, tuple[str, set[str], str]]:
    """By name: type, labels and help, as Prometheus understands them."""
    found = {}
    for family in text_string_to_metric_families(metrics(now).decode()):
        name = family.name + "_total" * (family.type == "counter")
        labels = {label for sample in family.samples for label in sample.labels}
        assert {sample.name for sample in family.samples} == {name}
        found[name] = family.type, labels, family.documentation
    return found


def test_the_table_is_that_of_the_code() -> None:
    table = ROW.findall((DOCS / "metrics.md").read_text())
    assert table == [
        (one.name, one.kind, one.unit, "".join(f" `{label}`" for label in one.labels), one.meaning) for one in METRICS
    ]


def test_a_mount_exports_what_the_table_says_and_nothing_else() -> None:
    now = mount(engine(job(), reading={"train": ReadingTime(10.0, 1.5)}))
    assert exported(now) == {one.name: (one.kind, {"mountpoint", *one.labels}, one.meaning) for one in METRICS}


def values(now: MountStatistics) -> dict[str, float]:
    """By name: the value of each metric that a mount exports once."""
    families = text_string_to_metric_families(metrics(now).decode())
    return {family.name: family.samples[0].value for family in families if len(family.samples) == 1}


def test_how_unevenly_ranks_load_is_told_of_two_ranks_at_least() -> None:
    found = values(mount(engine(job())))
    assert (found["mlfs_imbalance"], found["mlfs_imbalanced_steps"]) == (0.6, 0.25)
    alone = replace(load(), ranks=load().ranks[:1])
    for one in (alone, replace(load(), steps=0)):
        told = values(mount(engine(job(), loads={"train": one})))
        assert not {"mlfs_imbalance", "mlfs_imbalanced_steps"} & told.keys()


def test_names_say_type_and_unit() -> None:
    for one in METRICS:
        base = one.name.removesuffix("_total")
        assert (one.unit in ("bytes", "seconds")) == base.endswith(("_bytes", "_seconds"))
        if one.unit in ("bytes", "seconds"):
            assert base.endswith(f"_{one.unit}")


def test_any_name_can_be_a_label() -> None:
    now = mount(engine(job(name='"\\\n\x1b')))
    now = replace(now, about=About("/pfs/\udcff", "/data/\udcff\n", "scanned", 0.0))
    (family,) = [f for f in text_string_to_metric_families(metrics(now).decode()) if f.name == "mlfs_agreement"]
    assert family.samples[0].labels == {"mountpoint": "/data/\\xff\\n", "job": '"\\\\n\\x1b'}


def test_what_documents_ask_for_is_in_the_table() -> None:
    labels = {one.name: {"mountpoint", *one.labels} for one in METRICS}
    dashboard = json.loads((DOCS / "operation/grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    asked += [dashboard["templating"]["list"][1]["query"]]
    asked += re.findall(r"^    ([^#\n].*mlfs_.*)$", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert len(asked) > 10
    for expression in asked:
        assert expression.count("(") == expression.count(")")
        named = NAME.findall(expression)
        assert named
        assert set(named) <= labels.keys(), expression
        # The labels in braces and those that sums are made by: each is one of some metric of the expression.
        used = re.findall(r"(\w+)=~?\"", expression) + re.findall(
            r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))
        )
        assert set(used) <= set().union(*(labels[name] for name in named)), expression
    assert {name for expression in asked for name in NAME.findall(expression)} >= {
        "mlfs_reads_total", "mlfs_job_stalled_seconds_total", "mlfs_agreement", "mlfs_tier_bytes", "mlfs_errors_total",
    }  # fmt: skip
