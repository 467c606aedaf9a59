"""The dashboard and the alert rules ask for metrics and labels that exist, in PromQL that parses."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from server.data_folders import REPOSITORY
from tests.support.metrics import scrape_busy_app

DEPLOY = REPOSITORY / "deploy"
OF_PROMETHEUS = {"up": {"instance", "job"}}
OF_A_SCRAPE = {"instance", "job"}  # added by Prometheus
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}
OVER_TIME = {"rate", "increase"}

Labels = dict[str, set[str]]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Labels:
    """Every sample's name, with its labels."""
    found = dict(OF_PROMETHEUS)
    for family in text_string_to_metric_families(asyncio.run(scrape_busy_app(tmp_path_factory.mktemp("home")))):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels, OF_A_SCRAPE)
    return found


def alert_expressions() -> list[str]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    text = (DEPLOY / "grafana/dashboard.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def panel_expressions() -> list[str]:
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    for name, value in VARIABLES.items():
        expressions = [expression.replace(name, value) for expression in expressions]
    return expressions


def parts(node: Any) -> Iterator[Any]:
    """The expression and all that it is made of."""
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (child := getattr(node, name, None)) is not None:
            yield from parts(child)
    for argument in getattr(node, "args", []):
        yield from parts(argument)


def wrong(expression: str, metrics: Labels) -> list[str]:
    """What the expression asks for that is not there."""
    problems: list[str] = []
    tree = promql_parser.parse(expression)
    selectors = [part for part in parts(tree) if isinstance(part, promql_parser.VectorSelector)]
    for selector in selectors:
        if selector.name not in metrics:
            problems.append(f"no metric {selector.name}")
            continue
        asked = {matcher.name for matcher in selector.matchers.matchers}
        problems += [f"{selector.name} has no label {label}" for label in asked - metrics[selector.name]]
    known = set().union(*(metrics.get(selector.name, set()) for selector in selectors))
    for part in parts(tree):
        if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
            problems += [f"no label {label} to sum by" for label in set(part.modifier.labels) - known]
        if isinstance(part, promql_parser.Call) and part.func.name in OVER_TIME:
            names = [each.name for each in parts(part) if isinstance(each, promql_parser.VectorSelector)]
            problems += [f"{name} is no counter" for name in names if not name.endswith(("_total", "_bucket"))]
        if isinstance(part, promql_parser.Call) and part.func.name == "histogram_quantile":
            by = [each.modifier.labels for each in parts(part) if isinstance(each, promql_parser.AggregateExpr)]
            problems += ["a quantile needs le"] * (not by or "le" not in by[0])
    return problems


@pytest.mark.parametrize("expression", [*alert_expressions(), *panel_expressions()])
def test_every_expression_finds_its_metrics(expression: str, metrics: Labels) -> None:
    assert wrong(expression, metrics) == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("darkroom_jobs > 1", "no metric darkroom_jobs"),
        ('darkroom_jobs_waiting{model="a"}', "darkroom_jobs_waiting has no label model"),
        ("sum by (colour) (darkroom_jobs_waiting)", "no label colour to sum by"),
        ("rate(darkroom_jobs_waiting[5m])", "darkroom_jobs_waiting is no counter"),
        (
            "histogram_quantile(0.9, sum by (kind) (rate(darkroom_queue_seconds_bucket[5m])))",
            "a quantile needs le",
        ),
    ],
)
def test_the_check_finds_what_is_wrong(expression: str, problem: str, metrics: Labels) -> None:
    assert wrong(expression, metrics) == [problem]


def test_every_darkroom_metric_is_on_the_dashboard_or_in_an_alert(metrics: Labels) -> None:
    text = "\n".join([*alert_expressions(), *panel_expressions()])
    families = {name.removesuffix("_bucket") for name in metrics if not name.endswith(("_sum", "_count"))}
    assert [name for name in families if name.startswith("darkroom_") and name not in text] == []


def test_panels_do_not_overlap_and_have_their_own_ids() -> None:
    panels = dashboard()["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_each_alert_says_what_and_what_to_do() -> None:
    rules = [rule for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description"} <= rule["annotations"].keys()
