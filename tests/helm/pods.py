"""Pods of the chart as processes of this machine, the way a kubelet starts them: the rendered command, arguments,
environment, user, capabilities and volumes, in namespaces of their own, on a root file system that cannot be written.

What is missing of Kubernetes: images (the machine's own files, with this repository's environment, stand for them), the
API server with all that it checks, DNS (/etc/hosts), Services (their names lead to the pods), limits, network policies.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.netlab import Net
from tests.helm.rendering import ROOT, Manifest, Workload, find
from tests.helm.rules import amount

PATIENCE = 120.0  # seconds after which a test gives up; nothing is measured with it
_PYTHON = sorted({Path(sys.prefix), Path(sys.base_prefix), ROOT})
_CAPABILITIES = {"CHOWN": "chown", "FOWNER": "fowner", "IPC_LOCK": "ipc_lock"}


class Pod:
    """One pod. ``machine``: the directory that stands for the file system of the Kubernetes node. Volumes live as long
    as the pod, containers may be started again."""

    def __init__(
        self, net: Net, host: str, folder: Path, machine: Path, load: Workload, documents: list[Manifest],
        names: dict[str, list[str]] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.spec, self.address = f"{load.name}-{host}", load.pod, net.address[host]
        self._net, self._host, self._folder, self._machine = net, host, folder, machine
        self._load, self._documents, self._names = load, documents, names or {}
        self._volumes: dict[str, str] = {}  # commands that mount them at "$at"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True)
        self._make_volumes()

    # --- volumes --------------------------------------------------------------------------------------------

    def _make_volumes(self) -> None:
        group = self.spec.get("securityContext", {}).get("fsGroup", 0)
        for volume in self.spec["volumes"]:
            path = self._folder / "volumes" / volume["name"]
            if "hostPath" in volume:
                path = self._machine / volume["hostPath"]["path"].lstrip("/")
                assert path.is_dir() or volume["hostPath"]["type"] == "DirectoryOrCreate", path
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.mkdir(parents=True)
                self._fill(volume, path, group)
            self._volumes[volume["name"]] = f"mount --bind {shlex.quote(str(path))} $at"
        for claim in self._load.whole["spec"].get("volumeClaimTemplates", []):
            path = self._folder / "volumes" / claim["metadata"]["name"]
            path.mkdir(parents=True)
            _give(path, group, 0o2775)
            self._volumes[claim["metadata"]["name"]] = f"mount --bind {shlex.quote(str(path))} $at"

    def _fill(self, volume: dict[str, Any], path: Path, group: int) -> None:
        if "emptyDir" in volume:
            _give(path, group, 0o2777 if group else 0o777)
            if volume["emptyDir"].get("medium") == "Memory":
                size = int(amount(volume["emptyDir"]["sizeLimit"]))
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", str(path)], check=True)
            return
        if "configMap" in volume:
            files, mode = find(self._documents, "ConfigMap", volume["configMap"]["name"])["data"], volume["configMap"]
        else:
            files, mode = dict.fromkeys(("ca.crt", "tls.crt", "tls.key", "password"), "secret\n"), volume["secret"]
        for name, content in files.items():
            (path / name).write_text(content)
            _give(path / name, group, mode.get("defaultMode", 0o644))

    def remove(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is None:
                self.signal(name, signal.SIGKILL)
            process.wait()
        for volume in self.spec["volumes"]:
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                path = self._folder / "volumes" / volume["name"]
                subprocess.run(["umount", "--lazy", str(path)], check=False, stderr=subprocess.DEVNULL)

    # --- containers -----------------------------------------------------------------------------------------

    def container(self, name: str) -> dict[str, Any]:
        everything = [*self.spec.get("initContainers", []), *self.spec["containers"]]
        return next(one for one in everything if one["name"] == name)

    def run(self, name: str, *more: str) -> subprocess.CompletedProcess[str]:
        """A container to its end, with further arguments."""
        whole, descriptors = self._command(self.container(name), *more)
        return subprocess.run(
            whole, pass_fds=descriptors, capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def start(self, name: str) -> None:
        """All init containers, then this one."""
        for one in self.spec.get("initContainers", []):
            done = self.run(one["name"])
            assert done.returncode == 0, done.stderr
        whole, descriptors = self._command(self.container(name))
        with open(self._folder / f"{name}.log", "ab") as log:
            os.fchown(log.fileno(), int(self._user(self.container(name))), -1)  # so does runc
            self._processes[name] = subprocess.Popen(whole, pass_fds=descriptors, stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def keep_log(self, name: str) -> None:
        """From the container's own user."""
        os.chown(self._folder / f"{name}.log", 0, 0)

    def pid(self, name: str) -> int:
        """Of the container's process 1, as this machine counts."""
        outer = self._processes[name]
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        wait_for(lambda: outer.poll() is not None or children.read_text(), "the container to begin")
        assert outer.poll() is None, self.log(name)
        return int(children.read_text().split()[0])

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pid(name), number)

    def alive(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def wait(self, name: str) -> int:
        return self._processes.pop(name).wait(PATIENCE)

    def exec(self, name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """A command inside of a running container, as a probe, a hook or `kubectl exec` runs it."""
        container = self.container(name)
        enter = ["nsenter", "--target", str(self.pid(name)), "--mount", "--pid", "--net", "--root"]
        whole = [*enter, *self._rights(container), *self._environment(container), *command]
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=PATIENCE)

    def probe(self, name: str, kind: str) -> tuple[bool, str]:
        """What a probe of the manifest says: good or not, and why. HTTP comes from the pod's neighbour."""
        container = self.container(name)
        probe = container[kind]
        if "exec" in probe:
            done = self.exec(name, probe["exec"]["command"])
            return done.returncode == 0, done.stdout + done.stderr
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        url = f"http://{self.address}:{ports[probe['httpGet']['port']]}{probe['httpGet']['path']}"
        neighbour = next(host for host in self._net.names if host != self._host)
        return self._net.inside(neighbour, lambda: _get(url, probe["timeoutSeconds"]))

    def pre_stop(self, name: str) -> subprocess.CompletedProcess[str]:
        return self.exec(name, self.container(name)["lifecycle"]["preStop"]["exec"]["command"])

    # --- how a container is started -------------------------------------------------------------------------

    def _command(self, container: dict[str, Any], *more: str) -> tuple[list[str], tuple[int, ...]]:
        script = self._folder / f"{container['name']}.sh"
        script.write_text(self._script(container, more))
        apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-eu", str(script)]
        return self._net.command(self._host, *apart)

    def _script(self, container: dict[str, Any], more: tuple[str, ...]) -> str:
        apart = shlex.quote(str(self._folder / f"root-{container['name']}"))
        lines = [
            f"mkdir -p {apart}; mount -t tmpfs tmpfs {apart}; cd {apart}; mkdir up work root",
            "mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root",
            "for at in proc dev sys; do mount --rbind /$at root/$at; done",
            *_reachable(),
            "mkdir -p root/etc root/run; mount -t tmpfs tmpfs root/run",
        ]
        for address, name in ((address, name) for name, found in self._names.items() for address in found):
            lines.append(f"echo {address} {name} >>root/etc/hosts")
        mounts = sorted(container.get("volumeMounts", []), key=lambda mount: mount["mountPath"])
        for mount in mounts:
            lines.append(f"at=root{mount['mountPath']}; mkdir -p $at; {self._volumes[mount['name']]}")
            if mount.get("readOnly"):
                lines.append("mount -o remount,ro,bind $at")
        lines.append("mount -o remount,ro root")
        command = [*container["command"], *container.get("args", []), *more]
        whole = ["chroot", "root", *self._rights(container), *self._environment(container), *command]
        return "\n".join([*lines, "exec " + shlex.join(whole)]) + "\n"

    def _rights(self, container: dict[str, Any]) -> list[str]:
        whole = {**self.spec.get("securityContext", {}), **container.get("securityContext", {})}
        kept = [_CAPABILITIES[name] for name in whole.get("capabilities", {}).get("add", [])]
        user, group = self._user(container), str(whole["runAsGroup"])
        groups = [f"--groups={whole['fsGroup']}"] if "fsGroup" in whole else ["--clear-groups"]
        caps = ",".join(["-all", *(f"+{name}" for name in kept)])
        return [
            "setpriv", "--reuid", user, "--regid", group, *groups, "--no-new-privs", f"--inh-caps={caps}",
            f"--bounding-set={caps}",
        ]  # fmt: skip

    def _user(self, container: dict[str, Any]) -> str:
        return str({**self.spec.get("securityContext", {}), **container.get("securityContext", {})}["runAsUser"])

    def _environment(self, container: dict[str, Any]) -> list[str]:
        found = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}  # what the image has
        for one in container.get("env", []):
            found[one["name"]] = one["value"] if "value" in one else self._field(one["valueFrom"]["fieldRef"])
        return ["env", "-i", "--chdir=/", *(f"{name}={value}" for name, value in found.items())]

    def _field(self, reference: dict[str, str]) -> str:
        path = reference["fieldPath"]
        if path.startswith("metadata.labels["):
            return "room-2"  # what the cluster's machines say
        return {"spec.nodeName": f"machine-{self._host}", "status.podIP": self.address}[path]


def _give(path: Path, group: int, mode: int) -> None:
    os.chown(path, 0, group)
    path.chmod(mode)


def _reachable() -> list[str]:
    """Python and this repository, for users who are not their owner."""
    folders = {parent for path in _PYTHON for parent in (path, *path.parents) if parent != Path("/")}
    readable = [f"chmod a+rx root{shlex.quote(str(folder))}" for folder in sorted(folders)]
    apart = [shlex.quote(str(path)) for path in _PYTHON if path.stat().st_dev != Path("/").stat().st_dev]
    return [*readable, *(f"mkdir -p root{path}; mount --rbind {path} root{path}" for path in apart)]


def _get(url: str, seconds: float) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(url, timeout=seconds) as reply:
            return reply.status == 200, reply.read().decode()
    except urllib.error.HTTPError as error:
        return False, error.read().decode()
    except OSError as error:
        return False, str(error)


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true"
        time.sleep(0.1)


def _good(pod: Pod, kind: str) -> bool:
    assert pod.alive("node"), pod.log("node")
    return pod.probe("node", kind)[0]


def running(pod: Pod) -> Pod:
    """A node's pod that was started and is ready."""
    pod.start("node")
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        wait_for(partial(_good, pod, kind), f"{pod.name}: {kind}")
    return pod
