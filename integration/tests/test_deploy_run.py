"""The manifests of ``integration/deploy`` at work: what they say is done as Kubernetes would, with real mounts, on this
machine. Neither Kubernetes nor Docker has run here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.harness.daemon import WAYS
from integration.harness.holdings import SharedMemory, status, wait_until
from integration.tests.conftest import ForkChild
from integration.tests.manifests import compose, objects, pod_of, stages
from integration.tests.pods import PROPAGATIONS, Container, Node, start_pod

LIMIT = 1 << 30
KINDS = 'mnt,pid,net,ipc,uts'


@pytest.fixture
def node() -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip('only root can make containers')
    with Node() as made:
        yield made


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    """The limit of the daemon's pod, smaller than in the manifest."""
    made = SharedMemory(f'overmind-{os.getpid()}-pod', LIMIT)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def daemon_pod() -> dict[str, Any]:
    return pod_of(objects('daemonset.yaml'), 'DaemonSet')


def argument(container: Container, name: str) -> str:
    """The value of an option of its command line."""
    (word,) = [word for word in container.command if word.startswith(f'{name}=')]
    return str(word).partition('=')[2]


@pytest.mark.parametrize('way', ['passthrough', 'fd'])
def test_a_client_pod_over_restarts_of_the_daemons_pod(
    memory: SharedMemory, node: Node, daemon_pod: dict[str, Any], fork_child: ForkChild, tmp_path: Path, way: str
) -> None:
    """A daemon that is killed and one that is deleted. The client has no privileges, and reaches the arenas of every
    daemon by the same way, also by the socket of one that was not there when it started."""
    image, log = stages('Dockerfile')[-1], tmp_path / 'daemon.log'
    # Not what the machine that runs the tests has too little of.
    more = ['--pressure=off', *WAYS[way]]

    def start() -> Container:
        pod = start_pod(node, daemon_pod, image, log, more=more, memory=memory)
        pod.await_startup()
        return pod

    daemon = start()
    root = node.path(daemon.spec['args'][-1])
    parent = daemon_pod['volumes'][0]['hostPath']['path']
    now = status(root)
    if way == 'passthrough' and not now['passthrough']['active']:
        pytest.skip('no passthrough')
    assert (now['passthrough']['active'], now['fd_passing']['active']) == (way == 'passthrough', True)
    assert daemon.passes('readinessProbe')
    assert daemon.passes('livenessProbe')
    assert daemon.probe(image.words('HEALTHCHECK'), 10)
    if memory.is_known:
        share = float(argument(daemon, '--max-bytes').rstrip('%')) / 100
        assert now['limits']['max_bytes'] == int(LIMIT * share)

    client_pod = pod_of(objects('client.yaml'), 'Deployment')
    client_pod['containers'][0]['command'] = ['cat']
    client = start_pod(node, client_pod, stages('client.Dockerfile')[-1], tmp_path / 'client.log')
    user = client_pod['securityContext']['runAsUser']
    child = fork_child(Path(client.environment['OVERMIND_ROOT']))
    child.ask(f'enter {client.pid} {KINDS}')
    child.ask(f'become {user}')

    def loads() -> list[tuple[str, str]]:
        answers = [child.ask('load assorted') for _ in range(2)]
        assert {a['digest'] for a in answers} == {digest}
        return [(a['loads'][-1]['outcome'], a['loads'][-1]['access']) for a in answers]

    first = child.ask('load assorted')
    assert first['loads'][-1]['outcome'] == 'miss', (first, child.stderr)
    digest = first['digest']
    assert loads() == [('hit', way), ('hit', way)]
    (entry,) = (root / 'pipelines').iterdir()
    assert entry.stat().st_uid == user

    with daemon.suspended():
        assert not daemon.passes('livenessProbe')
    wait_until(lambda: daemon.passes('livenessProbe'), 'it answers again')

    daemon.kill()
    assert child.ask('digest')['digest'] == digest
    assert child.ask('load assorted')['loads'][-1]['outcome'] == 'bypass'
    assert child.stderr.count('the daemon is gone') + child.stderr.count('not connected') == 1, child.stderr
    daemon = start()
    assert node.mounts(parent) == [daemon.spec['args'][-1]]
    assert loads() == [('miss', way), ('hit', way)]

    # Deleted while in use: it unmounts, also in the client's pod, and ends well in time.
    assert daemon.stop(daemon_pod['terminationGracePeriodSeconds']) == 0
    assert node.mounts(parent) == []
    assert child.ask('digest')['digest'] == digest
    assert child.ask('load assorted')['loads'][-1]['outcome'] == 'bypass'
    assert list(node.path(argument(daemon, '--control-dir')).iterdir()) == []
    start()
    assert loads() == [('miss', way), ('hit', way)]
    assert 'copied instead of shared' not in child.stderr
    child.close()


def test_a_client_pod_that_is_there_first(
    node: Node, daemon_pod: dict[str, Any], fork_child: ForkChild, tmp_path: Path
) -> None:
    """It loads without the cache, with one warning, and then with it."""
    client_pod = pod_of(objects('client.yaml'), 'Deployment')
    client_pod['containers'][0]['command'] = ['cat']
    client = start_pod(node, client_pod, stages('client.Dockerfile')[-1], tmp_path / 'client.log')
    child = fork_child(Path(client.environment['OVERMIND_ROOT']))
    child.ask(f'enter {client.pid} {KINDS}')
    child.ask(f'become {client_pod["securityContext"]["runAsUser"]}')
    outcomes = [child.ask('load assorted')['loads'][-1]['outcome'] for _ in range(2)]
    assert child.stderr.count('is not a folder') == 1, child.stderr
    daemon = start_pod(node, daemon_pod, stages('Dockerfile')[-1], tmp_path / 'daemon.log', more=['--pressure=off'])
    daemon.await_startup()
    outcomes += [child.ask('load assorted')['loads'][-1]['outcome'] for _ in range(2)]
    assert outcomes == ['bypass', 'bypass', 'miss', 'hit']
    assert daemon.stop(daemon_pod['terminationGracePeriodSeconds']) == 0
    child.close()


# What Docker leaves to a container that asks for nothing.
DOCKERS = ['chown', 'dac_override', 'fowner', 'fsetid', 'kill', 'setgid', 'setuid', 'setpcap', 'net_bind_service']
DOCKERS += ['net_raw', 'sys_chroot', 'mknod', 'audit_write', 'setfcap']
_SYS_PTRACE, _SYS_ADMIN = 1 << 19, 1 << 21


def service(name: str) -> dict[str, Any]:
    """A service of the compose file as a pod, with the capabilities that it has."""
    said = compose()['services'][name]
    volumes, mounts = [], []
    for number, volume in enumerate(said['volumes']):
        source = {'path': volume['source'], 'type': 'DirectoryOrCreate'}
        volumes.append({'name': str(number), 'hostPath': source})
        word = next(w for w, kernel in PROPAGATIONS.items() if kernel == volume['bind']['propagation'])
        mounts.append({'name': str(number), 'mountPath': volume['target'], 'mountPropagation': word})
    user = {'runAsUser': int(said['user'].split(':')[0])} if 'user' in said else {}
    environment = [{'name': key, 'value': value} for key, value in said.get('environment', {}).items()]
    capabilities = [*DOCKERS, *[word.lower() for word in said.get('cap_add', ())]]
    only = {
        'args': said['command'],
        'env': environment,
        'volumeMounts': mounts,
        'securityContext': user,
        'capabilities': capabilities,
    }
    return {'volumes': volumes, 'containers': [only]}


@pytest.mark.parametrize('way', ['passthrough', 'fd'])
def test_compose_services(node: Node, fork_child: ForkChild, tmp_path: Path, way: str) -> None:
    """The daemon has what Docker leaves it and the file asks for, no more."""
    image, daemon_service, client_service = stages('Dockerfile')[-1], service('overmind'), service('client')
    folder = node.path(node.host_path(daemon_service['volumes'][0]))
    (folder / 'mnt').mkdir()  # as the document says
    daemon = start_pod(node, daemon_service, image, tmp_path / 'daemon.log', more=['--pressure=off', *WAYS[way]])
    facts = Path(f'/proc/{daemon.pid}/status').read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in facts if line.startswith('CapEff:'))
    assert effective & (_SYS_ADMIN | _SYS_PTRACE) == _SYS_ADMIN
    wait_until(lambda: daemon.probe(image.words('HEALTHCHECK'), 10), daemon.log.read_text)
    now = status(folder / 'mnt')
    if way == 'passthrough' and not now['passthrough']['active']:
        pytest.skip('no passthrough')
    assert (now['passthrough']['active'], now['fd_passing']['active']) == (way == 'passthrough', True)
    client_service['containers'][0].update(command=['cat'], args=[])
    client = start_pod(node, client_service, stages('client.Dockerfile')[-1], tmp_path / 'client.log')
    child = fork_child(Path(client.environment['OVERMIND_ROOT']), OVERMIND_STRICT='1')
    child.ask(f'enter {client.pid} {KINDS}')
    child.ask('become 1000')
    for outcome in ('miss', 'hit'):
        load = child.ask('load assorted')['loads'][-1]
        assert (load['outcome'], load['access']) == (outcome, way)
    assert daemon.stop(float(compose()['services']['overmind']['stop_grace_period'].rstrip('s'))) == 0
    assert node.mounts(daemon_service['volumes'][0]['hostPath']['path']) == []
    child.close()
