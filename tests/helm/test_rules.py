"""Rendered objects hang together; and each rule finds the mistake that it is there for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.helm import rules
from tests.helm.rendering import HELMS, VALUES, Manifest, find, manifests

Spoil = Callable[[list[Manifest]], Any]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("major", HELMS)
def test_no_rule_finds_anything(values: str, major: int) -> None:
    documents = manifests(values, major)
    assert [problem for rule in rules.RULES for problem in rule(documents)] == []


def pod(documents: list[Manifest]) -> Any:
    return find(documents, "StatefulSet")["spec"]["template"]


def container(documents: list[Manifest]) -> Any:
    return pod(documents)["spec"]["containers"][0]


def policy(documents: list[Manifest]) -> Any:
    return find(documents, "NetworkPolicy")["spec"]


def spoiled(key: str, value: object, where: Callable[[list[Manifest]], Any]) -> Spoil:
    return lambda documents: where(documents).__setitem__(key, value)


MISTAKES: list[tuple[rules.Rule, Spoil]] = [
    (rules.selectors_match_their_own_pods, spoiled("labels", {"a": "b"}, lambda d: pod(d)["metadata"])),
    (rules.selectors_match_their_own_pods,
     lambda d: find(d, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].pop("app.kubernetes.io/component")),
    (rules.mounts_name_volumes, lambda d: container(d)["volumeMounts"].append({"name": "x", "mountPath": "/x"})),
    (rules.mounts_name_volumes, lambda d: container(d)["volumeMounts"].pop()),
    (rules.mounts_name_volumes, lambda d: pod(d)["spec"]["volumes"].append({"name": "state", "emptyDir": {}})),
    (rules.container_ports_are_distinct_and_well_named, spoiled("name", "data", lambda d: container(d)["ports"][1])),
    (rules.container_ports_are_distinct_and_well_named,
     spoiled("name", "a-port-name-too-long", lambda d: container(d)["ports"][1])),
    (rules.ports_are_in_range, spoiled("containerPort", 99_999, lambda d: container(d)["ports"][1])),
    (rules.names_are_names, spoiled("name", "Upper_Case", lambda d: find(d, "StatefulSet")["metadata"])),
    (rules.names_are_names, spoiled("name", "a" * 60, lambda d: find(d, "StatefulSet")["metadata"])),
    (rules.names_are_names, lambda d: d.append(find(d, "NetworkPolicy"))),
    (rules.names_are_names, spoiled("release", "not a label", lambda d: pod(d)["metadata"]["labels"])),
    (rules.quantities_are_quantities, spoiled("memory", "10Gigs", lambda d: container(d)["resources"]["limits"])),
    (rules.quantities_are_quantities, spoiled("memory", "1Mi", lambda d: container(d)["resources"]["limits"])),
    (rules.budgets_say_one_thing, spoiled("minAvailable", 1, lambda d: find(d, "PodDisruptionBudget")["spec"])),
    (rules.statefulsets_have_their_service, spoiled("serviceName", "x", lambda d: find(d, "StatefulSet")["spec"])),
    (rules.statefulsets_have_their_service,
     spoiled("serviceName", "demo-kvstore", lambda d: find(d, "StatefulSet")["spec"])),
    (rules.peers_and_ports_exist,
     spoiled("targetPort", "metrics", lambda d: find(d, "Service", "demo-kvstore")["spec"]["ports"][0])),
    (rules.peers_and_ports_exist, spoiled("podSelector", {"matchLabels": {"app": "other"}}, policy)),
    (rules.peers_and_ports_exist, spoiled("port", "dta", lambda d: policy(d)["ingress"][0]["ports"][0])),
    (rules.probes_name_ports, spoiled("port", "web", lambda d: container(d)["readinessProbe"]["httpGet"])),
    (rules.protocols_are_written, lambda d: container(d)["ports"][0].pop("protocol")),
    (rules.protocols_are_written, lambda d: policy(d)["ingress"][0]["ports"][0].pop("protocol")),
    (rules.what_is_referred_to_is_there, spoiled("serviceAccountName", "x", lambda d: pod(d)["spec"])),
    (rules.what_is_referred_to_is_there, lambda d: d.remove(find(d, "ConfigMap", "demo-kvstore"))),
    (rules.pods_have_no_more_rights_than_used, spoiled("hostIPC", True, lambda d: pod(d)["spec"])),
    (rules.pods_have_no_more_rights_than_used, lambda d: pod(d)["spec"].pop("automountServiceAccountToken")),
    (rules.pods_have_no_more_rights_than_used, spoiled("runAsUser", 0, lambda d: container(d)["securityContext"])),
    (rules.pods_have_no_more_rights_than_used,
     spoiled("capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, lambda d: container(d)["securityContext"])),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_each_rule_finds_its_mistakes(number: int) -> None:
    rule, spoil = MISTAKES[number]
    documents = copy.deepcopy(manifests("pool-dns"))
    assert list(rule(documents)) == []
    spoil(documents)
    assert list(rule(documents)) != []


def test_each_rule_has_a_mistake() -> None:
    assert {rule for rule, _ in MISTAKES} == set(rules.RULES)
