"""The attributes of modules without the dozen empty containers that each has: two fifths of a structure, and a third of
the time that it takes to write. Reading takes as long: the containers have to be made."""

from __future__ import annotations

import collections
import sys
import weakref
from typing import Any

import torch

_CONTAINERS = (collections.OrderedDict, dict, set)


class Setter:
    """Stands for what sets the whole ``__dict__`` of a module, rebuild.dict_setter."""

    def __call__(self) -> None:
        """Only what can be called is taken for a setter of states."""


SETTER = Setter()


class Attributes(Setter):
    """What is to be written of a module's ``__dict__``, for one pickler, where it stands for rebuild.module_filler."""

    def __init__(self) -> None:
        module = torch.nn.Module()
        self._lent = sys.getrefcount(vars(module))  # references to a __dict__ that only its module has
        fresh = vars(module)
        self.kinds: dict[str, type] = {n: type(v) for n, v in fresh.items() if type(v) in _CONTAINERS and not v}
        self.names: dict[str, Any] = {n: None if n in self.kinds else v for n, v in fresh.items()}
        self._order = list(fresh)
        # Something else is the work of a program that has changed the class.
        self._usual = all(value is None or type(value) is bool for value in self.names.values())
        counts = []
        for name in self.kinds:
            value = fresh[name]
            counts.append(sys.getrefcount(value))
        self._held = min(counts, default=0)  # references to a container that only its module has, counted as below

    def alone(self, module: Any) -> bool:
        """Whether nobody else has the module's ``__dict__``, and with it all that is in there."""
        return self._usual and sys.getrefcount(vars(module)) <= self._lent

    def complete(self, state: dict[str, Any]) -> bool:
        """Whether torch's __setstate__ has nothing to add."""
        return self.names.keys() <= state.keys()

    def beyond_empty(self, module: Any, state: dict[str, Any]) -> dict[str, Any] | None:
        """Of a module's state, what one with nothing in it does not have so; None where that does not say it all: where
        the order is another one, or somebody else has one of the containers, too."""
        if list(state)[: len(self._order)] != self._order:
            return None
        whole = {} if state is vars(module) else vars(module)  # torch's __getstate__ makes a copy
        own = dict(state)
        for name, usual in self.names.items():
            value, kind = own[name], self.kinds.get(name)
            if kind is None:
                if value is usual:
                    del own[name]
            elif type(value) is kind and not value:
                del own[name]
                if sys.getrefcount(value) > self._held + (whole.get(name) is value):
                    return None
                if kind is not dict and (weakref.getweakrefcount(value) or getattr(value, '__dict__', None)):
                    return None
        return own
