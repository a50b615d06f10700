"""What schemas of Kubernetes do not see: how the rendered objects hang together. A rule yields what it finds wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.helm.rendering import Manifest, Workload, workloads

Rule = Callable[[list[Manifest]], Iterator[str]]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_UNITS = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_ROOT_ALLOWED = {"own-directories"}  # containers that may be root


def subset(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def amount(quantity: object) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(quantity)).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]


def of_kind(documents: list[Manifest], *kinds: str) -> list[Manifest]:
    return [one for one in documents if one["kind"] in kinds]


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value below, with its path."""
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from walk(inner, f"{path}[{at}]")


def selectors_match_their_own_pods(documents: list[Manifest]) -> Iterator[str]:
    for load in workloads(documents):
        if load.kind != "Pod" and not subset(load.whole["spec"]["selector"]["matchLabels"], load.labels):
            yield f"{load.kind} {load.name}: its selector is not among its pods' labels"
    for one in of_kind(documents, "StatefulSet", "DaemonSet", "Deployment", "PodDisruptionBudget"):
        selector = one["spec"]["selector"]["matchLabels"]
        found = [load.name for load in workloads(documents) if subset(selector, load.labels)]
        if len(found) != 1:
            yield f"{one['kind']} {one['metadata']['name']}: its selector finds the pods of {found or 'nobody'}"


def mounts_name_volumes(documents: list[Manifest]) -> Iterator[str]:
    for load in workloads(documents):
        claims = load.whole["spec"].get("volumeClaimTemplates", [])
        names = [one["name"] for one in load.pod.get("volumes", [])] + [one["metadata"]["name"] for one in claims]
        used = set()
        for container in load.containers:
            mounts = container.get("volumeMounts", [])
            used |= {mount["name"] for mount in mounts}
            for path, count in Counter(mount["mountPath"] for mount in mounts).items():
                if count > 1:
                    yield f"{load.name}/{container['name']}: {path} is mounted twice"
        yield from (f"{load.name}: mount of {name}, which is no volume" for name in sorted(used - set(names)))
        yield from (f"{load.name}: volume {name} is mounted nowhere" for name in sorted(set(names) - used))
        yield from (f"{load.name}: volume {name} twice" for name, count in Counter(names).items() if count > 1)


def container_ports_are_distinct_and_well_named(documents: list[Manifest]) -> Iterator[str]:
    for load in workloads(documents):
        ports = [port for container in load.containers for port in container.get("ports", [])]
        for key in ("name", "containerPort"):
            twice = [value for value, count in Counter(port[key] for port in ports).items() if count > 1]
            yield from (f"{load.name}: port {value} twice" for value in twice)
        for port in ports:
            if len(port["name"]) > 15 or not _PORT_NAME.fullmatch(port["name"]):
                yield f"{load.name}: port name {port['name']!r}"


def ports_are_in_range(documents: list[Manifest]) -> Iterator[str]:
    for one in documents:
        for path, value in walk(one):
            number = isinstance(value, int) and re.search(r"\.(containerPort|port|targetPort|nodePort)$", path)
            if number and not 0 < value < 65_536:
                yield f"{one['kind']} {one['metadata']['name']}: {path} = {value}"


def names_are_names(documents: list[Manifest]) -> Iterator[str]:
    seen = Counter((one["kind"], one["metadata"]["name"]) for one in documents)
    yield from (f"{kind} {name} twice" for (kind, name), count in seen.items() if count > 1)
    for one in documents:
        name = one["metadata"]["name"]
        most = 52 if one["kind"] == "StatefulSet" else 63  # pods get a number and, in a label, a hash behind it
        if len(name) > most or not _NAME.fullmatch(name):
            yield f"{one['kind']} name {name!r}"
        labels = [value for path, value in walk(one) if path.endswith((".labels", ".matchLabels"))]
        for key, value in (item for group in labels for item in group.items()):
            if not isinstance(value, str) or len(value) > 63 or not _LABEL.fullmatch(value):
                yield f"{one['kind']} {name}: label {key} = {value!r}"


def quantities_are_quantities(documents: list[Manifest]) -> Iterator[str]:
    for load in workloads(documents):
        for container in load.containers:
            asked, most = (container.get("resources", {}).get(kind, {}) for kind in ("requests", "limits"))
            bad = [value for value in [*asked.values(), *most.values()] if not _QUANTITY.fullmatch(str(value))]
            yield from (f"{load.name}: quantity {value!r}" for value in bad)
            if not bad:
                high = [name for name in asked.keys() & most.keys() if amount(asked[name]) > amount(most[name])]
                yield from (f"{load.name}: requests more {name} than its limit" for name in high)
    for one in documents:
        for path, value in walk(one):
            if path.endswith((".sizeLimit", ".storage")) and not _QUANTITY.fullmatch(str(value)):
                yield f"{one['metadata']['name']}: {path} = {value!r}"


def budgets_say_one_thing(documents: list[Manifest]) -> Iterator[str]:
    for one in of_kind(documents, "PodDisruptionBudget"):
        if ("minAvailable" in one["spec"]) == ("maxUnavailable" in one["spec"]):
            yield f"{one['metadata']['name']}: one of minAvailable and maxUnavailable"


def statefulsets_have_their_service(documents: list[Manifest]) -> Iterator[str]:
    services = {one["metadata"]["name"]: one for one in of_kind(documents, "Service")}
    for load in workloads(documents):
        if load.kind != "StatefulSet":
            continue
        service = services.get(load.whole["spec"]["serviceName"])
        if service is None:
            yield f"{load.name}: no Service {load.whole['spec']['serviceName']}"
        elif service["spec"].get("clusterIP") != "None" or not subset(service["spec"]["selector"], load.labels):
            yield f"{load.name}: its Service is not a headless one of its pods"


def peers_and_ports_exist(documents: list[Manifest]) -> Iterator[str]:
    """Services, policies and monitors find pods or services, and ports that these have."""
    pods, services = workloads(documents), of_kind(documents, "Service")
    for one in services:
        found = [load for load in pods if subset(one["spec"]["selector"], load.labels)]
        yield from _lacking(one, found, [port["targetPort"] for port in one["spec"].get("ports", [])])
    for one in of_kind(documents, "NetworkPolicy"):
        found = [load for load in pods if subset(one["spec"]["podSelector"]["matchLabels"], load.labels)]
        rules = [*one["spec"].get("ingress", []), *one["spec"].get("egress", [])]
        named = [port["port"] for rule in rules for port in rule.get("ports", []) if isinstance(port["port"], str)]
        yield from _lacking(one, found, named)
    for one in of_kind(documents, "ServiceMonitor"):
        labels = one["spec"]["selector"]["matchLabels"]
        matched = [service for service in services if subset(labels, service["metadata"]["labels"])]
        offered = {port["name"] for service in matched for port in service["spec"].get("ports", [])}
        wanted = [endpoint["port"] for endpoint in one["spec"]["endpoints"]]
        yield from (f"ServiceMonitor: no Service has a port {name}" for name in wanted if name not in offered)


def _lacking(one: Manifest, found: list[Workload], ports: list[str]) -> Iterator[str]:
    what = f"{one['kind']} {one['metadata']['name']}"
    if len(found) != 1:
        yield f"{what}: finds the pods of {[load.name for load in found] or 'nobody'}"
    for load in found:
        offered = {port["name"] for container in load.containers for port in container.get("ports", [])}
        yield from (f"{what}: {load.name} has no port {name}" for name in ports if name not in offered)


def probes_name_ports(documents: list[Manifest]) -> Iterator[str]:
    for load in workloads(documents):
        for container in load.containers:
            names = {port["name"] for port in container.get("ports", [])}
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                port = container.get(kind, {}).get("httpGet", {}).get("port")
                if port is not None and port not in names:
                    yield f"{load.name}: {kind} asks at {port}, which is no port"


def protocols_are_written(documents: list[Manifest]) -> Iterator[str]:
    """Server-side apply of older API servers needs it."""
    for one in documents:
        if one["kind"] in ("ServiceMonitor", "PrometheusRule"):
            continue
        for path, value in walk(one):
            if re.search(r"\.ports\[\d+\]$", path) and value.get("protocol") not in ("TCP", "UDP"):
                yield f"{one['kind']} {one['metadata']['name']}: {path} without protocol"


def what_is_referred_to_is_there(documents: list[Manifest]) -> Iterator[str]:
    """Secrets are the user's own."""
    there = {(one["kind"], one["metadata"]["name"]) for one in documents} | {("ServiceAccount", "default")}
    for load in workloads(documents):
        wanted = [("ConfigMap", volume["configMap"]["name"]) for volume in load.pod["volumes"] if "configMap" in volume]
        wanted += [("ServiceAccount", load.pod.get("serviceAccountName", "default"))]
        yield from (f"{load.name}: no {kind} {name}" for kind, name in wanted if (kind, name) not in there)


def pods_have_no_more_rights_than_used(documents: list[Manifest]) -> Iterator[str]:
    for load in workloads(documents):
        if load.pod.get("automountServiceAccountToken") is not False or load.pod.get("enableServiceLinks") is not False:
            yield f"{load.name}: token or service links"
        shared = [key for key in ("hostIPC", "hostPID", "hostNetwork") if load.pod.get(key)]
        yield from (f"{load.name}: {key}" for key in shared)
        if load.labels["app.kubernetes.io/component"] == "vllm":
            continue  # somebody else's image
        for container in load.containers:
            yield from _excess(load, container)


def _excess(load: Workload, container: dict[str, Any]) -> Iterator[str]:
    what, rights = f"{load.name}/{container['name']}", container.get("securityContext", {})
    if rights.get("allowPrivilegeEscalation") is not False or rights.get("readOnlyRootFilesystem") is not True:
        yield f"{what}: escalation, or a root file system that can be written"
    if rights.get("capabilities", {}).get("drop") != ["ALL"]:
        yield f"{what}: keeps capabilities"
    if container["name"] not in _ROOT_ALLOWED:
        whole = {**load.pod.get("securityContext", {}), **rights}
        if whole.get("runAsNonRoot") is not True or not whole.get("runAsUser"):
            yield f"{what}: may be root"
        if set(rights["capabilities"].get("add", [])) - {"IPC_LOCK"}:
            yield f"{what}: adds capabilities"


RULES: list[Rule] = [
    selectors_match_their_own_pods,
    mounts_name_volumes,
    container_ports_are_distinct_and_well_named,
    ports_are_in_range,
    names_are_names,
    quantities_are_quantities,
    budgets_say_one_thing,
    statefulsets_have_their_service,
    peers_and_ports_exist,
    probes_name_ports,
    protocols_are_written,
    what_is_referred_to_is_there,
    pods_have_no_more_rights_than_used,
]
