"""The files in ``integration/deploy``, read by the parsers that other tools have for them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

from integration.harness.places import REPOSITORY

DEPLOY = REPOSITORY / 'integration' / 'deploy'


def objects(name: str) -> list[dict[str, Any]]:
    """The objects of a manifest for Kubernetes."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (one,) = [item for item in found if item['kind'] == kind]
    return one


def pod_of(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The pod that a DaemonSet or a Deployment starts."""
    pod: dict[str, Any] = of_kind(found, kind)['spec']['template']['spec']
    return pod


def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / 'compose.yaml').read_text())
    return read


@dataclass
class Stage:
    """One stage of a Dockerfile, and what it says last of each thing."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        return [value for name, value in self.steps if name == instruction][-1]

    def words(self, instruction: str) -> list[str]:
        """Of ENTRYPOINT, CMD and HEALTHCHECK in the form that starts no shell."""
        value = self.last(instruction)
        found: list[str] = json.loads(value[value.index('[') :])
        return found

    def environment(self) -> dict[str, str]:
        pairs = [pair.partition('=') for name, value in self.steps if name == 'ENV' for pair in value.split()]
        return {name: value for name, _, value in pairs}

    def copied(self) -> list[str]:
        """What is copied from the repository."""
        found: list[str] = []
        for name, value in self.steps:
            if name == 'COPY' and '--from' not in value:
                found += value.split()[:-1]
        return found


def stages(name: str) -> list[Stage]:
    parser = DockerfileParser(fileobj=io.BytesIO((DEPLOY / name).read_bytes()))
    found: list[Stage] = []
    for step in parser.structure:
        instruction, value = step['instruction'], step['value']
        if instruction == 'FROM':
            base, *rest = value.split()
            found.append(Stage(base, rest[-1] if rest else ''))
        elif found and instruction != 'COMMENT':
            found[-1].steps.append((instruction, value))
    return found
