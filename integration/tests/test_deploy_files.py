"""The files in ``integration/deploy`` against the schemas and parsers of those that will read them, against the
program, and against each other; and that each of these checks can fail. Nothing here needs a network, Docker or
Kubernetes."""

from __future__ import annotations

import copy
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from integration.harness.places import REPOSITORY
from integration.tests import command_lines
from integration.tests.manifests import DEPLOY, compose, objects, of_kind, pod_of, stages

# The oldest and the newest of which there are schemas here.
KUBERNETES = ('1.25', '1.37')
MANIFESTS = ('daemonset.yaml', 'client.yaml')
DOCKERFILES = ('Dockerfile', 'client.Dockerfile')
Change = Callable[[dict[str, Any]], object]


# ---- schemas


def refused(item: dict[str, Any], version: str) -> str:
    try:
        kubernetes_validate.validate(item, version, strict=True)  # strict: no field that Kubernetes does not know
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return ''


@pytest.mark.parametrize('version', KUBERNETES)
@pytest.mark.parametrize('name', MANIFESTS)
def test_manifests_fit_the_schemas(name: str, version: str) -> None:
    for item in objects(name):
        assert refused(item, version) == ''


def container(item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = item['spec']['template']['spec']['containers'][0]
    return found


MUTATIONS: dict[str, Change] = {
    'a field that is misspelt': lambda d: container(d).update(readynessProbe={}),
    'a field in the wrong place': lambda d: d['spec'].update(hostPID=True),
    'a word for a truth value': lambda d: container(d)['securityContext'].update(privileged='yes'),
    'a text for a number': lambda d: container(d)['livenessProbe'].update(periodSeconds='30'),
    'a command that is no list': lambda d: container(d)['startupProbe']['exec'].update(command='overmind-fs status'),
    'no selector': lambda d: d['spec'].pop('selector'),
    'a mount without a path': lambda d: container(d)['volumeMounts'][0].pop('mountPath'),
}


@pytest.mark.parametrize('what', MUTATIONS)
def test_a_damaged_manifest_is_refused(what: str) -> None:
    item = of_kind(objects('daemonset.yaml'), 'DaemonSet')
    MUTATIONS[what](item)
    assert refused(item, KUBERNETES[-1])


def compose_errors(read: dict[str, Any]) -> list[str]:
    schema = json.loads((Path(__file__).parent / 'schemas' / 'compose-spec.json').read_text())
    return [error.message for error in jsonschema.validators.validator_for(schema)(schema).iter_errors(read)]


def test_compose_file() -> None:
    read = compose()
    assert compose_errors(read) == []
    changes: list[Change] = [
        lambda c: c['services']['overmind'].update(device=['/dev/fuse']),
        lambda c: c['services']['overmind']['volumes'][0]['bind'].update(propagation=7),
        lambda c: c['services']['client'].update(depends_on={'overmind': {'condition': 'service_fine'}}),
    ]
    for change in changes:
        changed = copy.deepcopy(read)
        change(changed)
        assert compose_errors(changed)
    # What the schema leaves open.
    words = {'shared', 'rshared', 'slave', 'rslave', 'private', 'rprivate'}
    assert {v['bind']['propagation'] for s in read['services'].values() for v in s['volumes']} <= words
    for service in read['services'].values():
        assert (DEPLOY / service['build']['context'] / service['build']['dockerfile']).exists()


# ---- Dockerfiles


def findings(path: Path) -> list[str]:
    found = shutil.which('hadolint', path=f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}')
    assert found, 'hadolint is missing: make venv'
    done = subprocess.run([found, '--no-color', '--format', 'json', str(path)], capture_output=True, text=True)
    return [f'{item["code"]}: {item["message"]}' for item in json.loads(done.stdout)]


@pytest.mark.parametrize('name', DOCKERFILES)
def test_dockerfiles_are_clean(name: str, tmp_path: Path) -> None:
    assert findings(DEPLOY / name) == []
    broken = tmp_path / name
    text = (DEPLOY / name).read_text()
    for old, new in (('# hadolint ignore=DL3008\n', ''), ('RUN ', 'RAN ')):
        assert old in text
        broken.write_text(text.replace(old, new))
        assert findings(broken)


def is_ignored(file: str, patterns: list[str]) -> bool:
    """As Docker has it: patterns begin at the top, what fits a folder fits all in it, the last one that fits wins."""
    parts = Path(file).parts
    ignored = False
    for line in patterns:
        wanted = Path(line.lstrip('!')).parts
        if wanted[0] == '**':
            fits = any(fnmatch.fnmatchcase(part, wanted[1]) for part in parts)
        else:
            fits = len(parts) >= len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
        ignored = ignored if not fits else not line.startswith('!')
    return ignored


def context(name: str, to: Path) -> None:
    """What Docker gets to see of the repository."""
    patterns = (DEPLOY / f'{name}.dockerignore').read_text().split()
    for folder, folders, names in os.walk(REPOSITORY):
        at = Path(folder).relative_to(REPOSITORY)
        folders[:] = [name for name in folders if not is_ignored(str(at / name), patterns)]
        for file in [at / name for name in names if not is_ignored(str(at / name), patterns)]:
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / file, to / file)


@pytest.mark.parametrize('name', DOCKERFILES)
def test_what_a_dockerfile_copies_is_there(name: str, tmp_path: Path) -> None:
    context(name, tmp_path)
    copied = [source for stage in stages(name) for source in stage.copied()]
    assert copied
    for source in copied:
        assert (tmp_path / source).exists(), source
    assert {path.name for path in tmp_path.iterdir()} == {Path(source).parts[0] for source in copied}


def test_the_build_stage_builds(tmp_path: Path) -> None:
    """The compiler's step in a folder that has what the image has, and what comes out runs without any library."""
    build, run = stages('Dockerfile')
    there, image = tmp_path / 'context', tmp_path / 'image'
    there.mkdir()
    image.mkdir()
    context('Dockerfile', there)
    wanted = re.search(r'^go (\d+\.\d+)', (REPOSITORY / 'go.mod').read_text(), re.MULTILINE)
    assert wanted
    assert build.base == f'golang:{wanted[1]}'
    for source in build.copied():
        if (there / source).is_dir():
            shutil.copytree(there / source, image / source)
        else:
            shutil.copy(there / source, image)
    # `go mod download` is left out: all modules are here already.
    (step,) = [value for name, value in build.steps if name == 'RUN' and 'go build' in value]
    environment = {**os.environ, 'VERSION': '1.2.3-test', 'GOFLAGS': '-mod=readonly', 'GOPROXY': 'off'}
    done = subprocess.run(['sh', '-euc', step], cwd=image, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (copy_,) = [value.split() for name, value in run.steps if name == 'COPY']
    assert copy_ == ['--from=build', f'{build.last("WORKDIR")}/overmind-fs', '/usr/local/bin/overmind-fs']
    built = image / 'overmind-fs'
    said = subprocess.run([built, '--version'], capture_output=True, text=True, check=True).stdout
    assert '1.2.3-test' in said
    linked = subprocess.run(['ldd', str(built)], capture_output=True, text=True)
    assert 'not a dynamic executable' in linked.stderr + linked.stdout


# ---- the program


def command_lines_used() -> dict[str, list[str]]:
    """Every command line of overmind-fs in these files, behind its name."""
    run = stages('Dockerfile')[-1]
    (entry,) = run.words('ENTRYPOINT')
    assert entry == command_lines.PROGRAM
    found = {
        'Dockerfile CMD': run.words('CMD'),
        'Dockerfile HEALTHCHECK': run.words('HEALTHCHECK')[1:],
        'compose': compose()['services']['overmind']['command'],
    }
    (daemon,) = pod_of(objects('daemonset.yaml'), 'DaemonSet')['containers']
    found['DaemonSet'] = daemon['args']
    for probe in ('startupProbe', 'readinessProbe', 'livenessProbe'):
        program, *found[probe] = daemon[probe]['exec']['command']
        assert program == command_lines.PROGRAM
    return found


def test_the_program_understands_every_command_line() -> None:
    used = command_lines_used()
    for where, words in used.items():
        assert command_lines.problems(words) == [], where
        parsed = {word.partition('=')[0] for word in words if word.startswith('-')}
        assert words[0] in ('mount', 'status')
        assert words[0] == 'status' or {'--allow-other', '--max-bytes', '--control-dir'} <= parsed, where
    assert command_lines.problems(['mount', '--allow-others', '/mnt'])
    assert command_lines.problems(['status', '--max-bytes=1'])
    assert command_lines.problems(['stats'])
    assert command_lines.problems(['--rot', '/mnt', 'status'])


# Of docker, mount(8) and unshare(1).
OTHERS = {
    '--device',
    '--cap-add',
    '--security-opt',
    '--bind',
    '--make-shared',
    '--memory',
    '--user',
    '--pid',
}


def test_the_document_names_only_what_there_is() -> None:
    text = (REPOSITORY / 'docs' / 'containers.md').read_text()
    lines = command_lines.in_text(text)
    assert any(line[0] == 'mount' for line in lines)
    for line in lines:
        assert command_lines.problems(line) == [], line
    assert command_lines.options_in(text) - OTHERS <= command_lines.all_flags()
    for name in re.findall(r'`(integration/[\w./]+)`', text):
        assert (REPOSITORY / name).exists(), name
    broken = text.replace('overmind-fs mount --background', 'overmind-fs mount --foreground')
    assert any(command_lines.problems(line) for line in command_lines.in_text(broken))


# ---- each other


def disagreements(daemon_pod: dict[str, Any], client_pod: dict[str, Any]) -> list[str]:
    """What no schema sees, and would only be noticed on a node."""
    found = []
    (daemon,), (client,) = daemon_pod['containers'], client_pod['containers']
    (volume,), (seen,) = daemon_pod['volumes'], client_pod['volumes']
    (mount,), (view,) = daemon['volumeMounts'], client['volumeMounts']
    args = daemon['args']
    root = Path(args[-1])
    option = dict(word.split('=', 1) for word in args if word.startswith('--') and '=' in word)
    parent = Path(volume['hostPath']['path'])
    if mount.get('mountPropagation') != 'Bidirectional':
        found.append('the mount stays in the pod')
    if not daemon['securityContext'].get('privileged'):
        found.append('Bidirectional is for privileged containers')
    if view.get('mountPropagation') != 'HostToContainer':
        found.append('the client keeps the mount that was there when it started')
    if view.get('readOnly') or mount.get('readOnly'):
        found.append('nobody can fill')
    if seen['hostPath']['path'] != volume['hostPath']['path']:
        found.append('client and daemon have different folders')
    if root.parent != Path(mount['mountPath']):
        found.append('the volume is not the parent of the mount')
    if Path(option['--control-dir']).parent != root.parent:
        found.append('the socket is not where clients see it')
    if len(f'{option["--control-dir"]}/overmind-fs-4194304-4294967295/control') > 107:
        found.append('the path of the socket is too long')
    (variable,) = [item['value'] for item in client['env'] if item['name'] == 'OVERMIND_ROOT']
    if Path(variable) != Path(view['mountPath']) / root.relative_to(mount['mountPath']):
        found.append('OVERMIND_ROOT is not the mount')
    for probe in ('startupProbe', 'readinessProbe', 'livenessProbe'):
        if daemon[probe]['exec']['command'][-1] != str(root):
            found.append(f'{probe} looks at another mount')
        if daemon[probe]['timeoutSeconds'] < 5:  # a daemon that hangs is waited for, two seconds
            found.append(f'{probe} ends before it has an answer')
    if daemon['resources']['requests']['memory'] != daemon['resources']['limits']['memory']:
        found.append('the node promises memory of the cache to others')
    share = float(option['--max-bytes'].rstrip('%'))
    if not option['--max-bytes'].endswith('%') or not 0 < share <= 95:
        found.append('the budget is not a share of the limit that leaves something')
    if client_pod['securityContext'].get('runAsUser', 0) == 0:
        found.append('the client is root')
    if parent.parent == Path('/'):
        found.append('all of a top folder is shared')
    return found


def pods() -> tuple[dict[str, Any], dict[str, Any]]:
    return pod_of(objects('daemonset.yaml'), 'DaemonSet'), pod_of(objects('client.yaml'), 'Deployment')


def argument(pod: dict[str, Any], old: str, new: str) -> None:
    args = pod['containers'][0]['args']
    args[:] = [word.replace(old, new) for word in args]


DISAGREEMENTS: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    'stays in the pod': lambda d, c: d['containers'][0]['volumeMounts'][0].pop('mountPropagation'),
    'privileged': lambda d, c: d['containers'][0]['securityContext'].pop('privileged'),
    'when it started': lambda d, c: c['containers'][0]['volumeMounts'][0].pop('mountPropagation'),
    'fill': lambda d, c: c['containers'][0]['volumeMounts'][0].update(readOnly=True),
    'different folders': lambda d, c: c['volumes'][0]['hostPath'].update(path='/var/lib/other'),
    'not the parent': lambda d, c: d['containers'][0]['volumeMounts'][0].update(mountPath='/var/lib'),
    'where clients see it': lambda d, c: argument(d, '/control', '/mnt/control'),
    'too long': lambda d, c: argument(d, '/control', f'/control{"l" * 60}'),
    'OVERMIND_ROOT': lambda d, c: c['containers'][0]['env'][0].update(value='/cache'),
    'another mount': lambda d, c: d['containers'][0]['livenessProbe']['exec']['command'].pop(),
    'before it has an answer': lambda d, c: d['containers'][0]['livenessProbe'].update(timeoutSeconds=1),
    'promises': lambda d, c: d['containers'][0]['resources']['requests'].update(memory='1Gi'),
    'leaves something': lambda d, c: argument(d, '85%', '100%'),
    'is root': lambda d, c: c['securityContext'].pop('runAsUser'),
}


def test_client_and_daemon_fit_each_other() -> None:
    assert disagreements(*pods()) == []
    run = stages('Dockerfile')[-1]
    words = run.words('CMD')
    assert compose()['services']['overmind']['command'] == words
    assert [word for word in pods()[0]['containers'][0]['args'] if not word.startswith('--log-')] == words
    assert words[-1] == run.environment()['OVERMIND_ROOT']
    service = compose()['services']['client']
    assert service['environment']['OVERMIND_ROOT'] == stages('client.Dockerfile')[-1].environment()['OVERMIND_ROOT']


@pytest.mark.parametrize('what', DISAGREEMENTS)
def test_a_disagreement_is_noticed(what: str) -> None:
    daemon, client = pods()
    DISAGREEMENTS[what](daemon, client)
    assert what in ' '.join(disagreements(daemon, client))
