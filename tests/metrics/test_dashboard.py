"""The dashboard as Grafana will read it. That its expressions return data is shown on a real Prometheus."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.metrics.promql import wrong_names
from tests.metrics.rules import ROOT
from tools import dashboard

FOUND = json.loads((ROOT / "deploy" / "grafana" / "kvstore.json").read_text())
PANELS = [panel for panel in FOUND["panels"] if panel["type"] != "row"]


def test_the_file_is_that_of_the_code() -> None:
    assert (ROOT / "deploy" / "grafana" / "kvstore.json").read_text() == dashboard.page(), "python -m tools.dashboard"


def test_panels_have_ids_of_their_own_and_lie_beside_each_other() -> None:
    ids = [panel["id"] for panel in FOUND["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in FOUND["panels"]:
        place = panel["gridPos"]
        assert place["w"] > 0 <= place["x"]
        assert place["x"] + place["w"] <= 24
    for one, two in itertools.combinations(FOUND["panels"], 2):
        assert not overlap(one["gridPos"], two["gridPos"]), (one["title"], two["title"])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_has_a_unit_and_asks_for_what_there_is(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["fieldConfig"]["defaults"]["unit"] in ("short", "ops", "Bps", "bytes", "s", "percentunit")
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    references = [target["refId"] for target in panel["targets"]]
    assert references == sorted(set(references))
    for target in panel["targets"]:
        assert wrong_names(target["expr"]) == []
        assert "§" not in target["expr"]
        assert "~)" not in target["expr"]
        assert target["expr"].count("(") == target["expr"].count(")")


def test_titles_tell_panels_apart() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)


def overlap(one: dict[str, int], two: dict[str, int]) -> bool:
    across = one["x"] < two["x"] + two["w"] and two["x"] < one["x"] + one["w"]
    return across and one["y"] < two["y"] + two["h"] and two["y"] < one["y"] + one["h"]
