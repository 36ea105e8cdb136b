"""Pods without Kubernetes: their volumes, commands, probes and limits, done with the means of this machine.

A node is a mount namespace in which the folder of the volume is shared, as all of them are under systemd. A container
is a process that is the first one in namespaces of its own, with a root of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from integration.harness.holdings import SharedMemory, wait_until
from integration.harness.places import daemon_binary
from integration.tests.furnish import Volume, furnish
from integration.tests.manifests import Stage
from integration.tests.spaces import Space

# What mountPropagation means to the kernel.
PROPAGATIONS = {'None': 'rprivate', 'HostToContainer': 'rslave', 'Bidirectional': 'rshared'}
_PODS = '/var/lib/pods'
# As the Dockerfile has it, and with its own view of the cgroups.
_IMAGE = [
    'mount -t tmpfs bin $new/usr/local/bin',
    f'cp {daemon_binary().resolve()} $new/usr/local/bin/overmind-fs',
    'mkdir $new/sys',
    'mount -t sysfs sysfs $new/sys',
    'if [ -e /sys/fs/cgroup/memory/cgroup.procs ]; then',
    '  mount -t tmpfs cgroup $new/sys/fs/cgroup',
    '  mkdir $new/sys/fs/cgroup/memory',
    '  mount -t cgroup -o memory cgroup $new/sys/fs/cgroup/memory',
    'else',
    '  mount -t cgroup2 cgroup $new/sys/fs/cgroup',
    'fi',
]


class Node(contextlib.ExitStack):
    """A machine with containers. All that they mount goes with it."""

    def __enter__(self) -> Node:
        super().__enter__()
        lines = [
            # Copies of mounts that are none of ours would outlive their own unmount.
            'while read -r _ point kind _; do',
            '  if [ "$kind" = fuse.overmind-fs ]; then umount -l "$point" || true; fi',
            'done </proc/self/mounts',
            'mount -t tmpfs node /var/lib',
            f'mkdir {_PODS}',
        ]
        self._space = self.enter_context(Space(['--mount', '--propagation=private'], '\n'.join(lines)))
        self.numbers = itertools.count()
        return self

    def line(self, *words: str) -> list[str]:
        return self._space.line(*words)

    def path(self, inside: str) -> Path:
        """A path of the node as this process sees it."""
        return Path(f'/proc/{self._space.pid}/root{inside}')

    def host_path(self, volume: dict[str, Any]) -> str:
        """A volume of the type hostPath, made as kubelet makes it."""
        path = str(volume['hostPath']['path'])
        if not self.path(path).exists():
            assert volume['hostPath']['type'] == 'DirectoryOrCreate'
            self.path(path).mkdir(parents=True)
            script = 'mount --bind "$0" "$0" && mount --make-shared "$0"'
            subprocess.run(self.line('sh', '-c', script, path), check=True)
        return path

    def mounts(self, folder: str) -> list[str]:
        """Mount points in a folder of the node, one for each mount."""
        text = Path(f'/proc/{self._space.pid}/mountinfo').read_text()
        points = [line.split()[4] for line in text.splitlines()]
        return [point for point in points if point.startswith(f'{folder}/')]


class Container:
    """One container of a pod, on a node. Started by ``start`` or ``complete``."""

    def __init__(
        self,
        node: Node,
        pod: dict[str, Any],
        container: dict[str, Any],
        image: Stage,
        log: Path,
        more: Sequence[str] = (),
        memory: SharedMemory | None = None,
    ) -> None:
        self.node, self.log, self._memory = node, log, memory
        self.spec = container
        # args go behind the entry point of the image, command takes its place.
        entry = container.get('command') or image.words('ENTRYPOINT')
        self.command = [*entry, *container.get('args', ()), *more]
        own = {item['name']: item['value'] for item in container.get('env', ())}
        self.environment = {'PATH': os.environ['PATH'], 'HOME': '/root', **image.environment(), **own}
        self._user = {**pod.get('securityContext', {}), **container.get('securityContext', {})}.get('runAsUser')
        volumes = {volume['name']: volume for volume in pod['volumes']}
        self._volumes = [
            Volume(
                node.host_path(volumes[mount['name']]),
                mount['mountPath'],
                PROPAGATIONS[mount.get('mountPropagation', 'None')],
            )
            for mount in container['volumeMounts']
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of its first process, here."""
        assert self._process is not None
        (child,) = Path(f'/proc/{self._process.pid}/task/{self._process.pid}/children').read_text().split()
        return int(child)

    def start(self) -> Container:
        root = Path(_PODS, str(next(self.node.numbers)))
        script = '\n'.join([furnish(root, self._volumes, *_IMAGE), 'exec "$@"'])
        kinds = ['--pid', '--fork', '--kill-child', '--net', '--ipc', '--uts', '--cgroup']
        line = self.node.line('unshare', '--mount', '--propagation=unchanged', *kinds, 'sh', '-euc', script, 'sh')
        user = ['setpriv', f'--reuid={self._user}', '--clear-groups'] if self._user else []
        if 'capabilities' in self.spec:  # those of Docker; a privileged container has them all
            kept = ','.join(f'+{name}' for name in self.spec['capabilities'])
            user = ['setpriv', f'--bounding-set=-all,{kept}', *user]
        if self._memory is not None:
            line = self._memory.line(*line)
        with self.log.open('ab') as log:
            self._process = subprocess.Popen(
                [*line, *user, *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.environment,
            )
        self.node.callback(self.kill)
        wait_until(lambda: self._is_there() or not self.running(), lambda: f'{self.command}: {self.log.read_text()}')
        return self

    def _is_there(self) -> bool:
        """Its root is furnished, and its command runs."""
        with contextlib.suppress(ValueError, OSError):
            return Path(f'/proc/{self.pid}/cmdline').read_text().split('\0')[:-1] == self.command
        return False

    def complete(self) -> None:
        """As an init container: it has to end well before the next one starts."""
        self.start()
        assert self._process is not None
        assert self._process.wait(60) == 0, self.log.read_text()

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, seconds: float) -> int:
        """As when a pod is deleted: SIGTERM, and its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        assert self._process is not None
        return self._process.wait(seconds)

    def kill(self) -> None:
        if self._process is not None:
            if self.running():
                with contextlib.suppress(ValueError, ProcessLookupError):  # it has ended in between
                    os.kill(self.pid, signal.SIGKILL)
            self._process.communicate()

    def probe(self, words: Sequence[str], seconds: float) -> bool:
        """What an exec probe runs, and whether it passes in that time."""
        kinds = ['--mount', '--pid', '--net', '--ipc', '--uts', '--cgroup']
        try:
            line = ['nsenter', f'--target={self.pid}', *kinds, *words]
            done = subprocess.run(line, capture_output=True, timeout=seconds, env=self.environment)
        except (ValueError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def passes(self, name: str) -> bool:
        """One of the probes of the manifest, with its own time limit."""
        probe = self.spec[name]
        return self.probe(probe['exec']['command'], probe['timeoutSeconds'])

    def await_startup(self) -> None:
        probe = self.spec['startupProbe']
        wait_until(
            lambda: self.passes('startupProbe') or not self.running(),
            self.log.read_text,
            probe['periodSeconds'] * probe['failureThreshold'],
        )
        assert self.running(), self.log.read_text()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


def start_pod(node: Node, pod: dict[str, Any], image: Stage, log: Path, **options: Any) -> Container:
    """All init containers, one after the other, then the only container."""
    for container in pod.get('initContainers', ()):
        Container(node, pod, container, image, log).complete()
    (container,) = pod['containers']
    return Container(node, pod, container, image, log, **options).start()
