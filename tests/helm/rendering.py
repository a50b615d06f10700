"""The chart rendered by real Helm."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.helm.binaries import SOURCES, helm

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "kvstore"
HERE = Path(__file__).parent
VALUES = sorted(path.stem for path in (HERE / "values").glob("*.yaml"))
HELMS = sorted(SOURCES)
RELEASE, NAMESPACE = "demo", "prod"
_PATIENCE = 120.0

Manifest = dict[str, Any]


@cache
def binary(major: int) -> Path:
    return helm(major, ROOT / "build" / "helm")


def run(major: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(binary(major)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)


def template(major: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(major, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.33.0", *arguments)


@cache
def text(major: int, values: str) -> str:
    """What Helm prints for one of values/."""
    done = template(major, "-f", str(HERE / "values" / f"{values}.yaml"))
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def _documents(major: int, values: str) -> tuple[Manifest, ...]:
    return tuple(document for document in yaml.safe_load_all(text(major, values)) if document)


def manifests(values: str, major: int = HELMS[-1]) -> list[Manifest]:
    """The objects, not to be changed by the caller."""
    return list(_documents(major, values))


def find(documents: list[Manifest], kind: str, name: str = "") -> Manifest:
    """The one object of this kind (and name)."""
    found = [one for one in documents if one["kind"] == kind and name in ("", one["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} {kind} {name}"
    return found[0]


@dataclass(frozen=True)
class Workload:
    """A Deployment, StatefulSet, DaemonSet or bare Pod: its pods as one looks at them."""

    kind: str
    name: str
    labels: dict[str, str]
    pod: dict[str, Any]
    whole: Manifest

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]


def workloads(documents: list[Manifest]) -> list[Workload]:
    found = []
    for one in documents:
        if one["kind"] == "Pod":
            source = one
        elif "template" in one.get("spec", {}):
            source = one["spec"]["template"]
        else:
            continue
        name = one["metadata"]["name"]
        found.append(Workload(one["kind"], name, source["metadata"]["labels"], source["spec"], one))
    return found


def node(documents: list[Manifest]) -> Workload:
    """The nodes of the cache."""
    return next(one for one in workloads(documents) if one.kind in ("StatefulSet", "DaemonSet"))
