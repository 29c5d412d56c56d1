"""What can go wrong in a room is one tree of classes, written at the top of its module."""

import importlib
import inspect
from types import ModuleType

import pytest

ROOMS = ("gateway", "kube", "local", "operator", "process", "workers")
TREES = ("workers.multimodal.transfer", "workers.multimodal.broadcast")
MODULES = [importlib.import_module(f"pointsman.{room}.errors") for room in (*ROOMS, *TREES)]


def classes(module: ModuleType) -> list[type[Exception]]:
    found = [item for item in vars(module).values() if inspect.isclass(item) and issubclass(item, Exception)]
    return [item for item in found if item.__module__ == module.__name__]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_error_of_a_module_is_in_the_tree_at_its_top_below_its_base(module: ModuleType) -> None:
    lines = (module.__doc__ or "").splitlines()
    root, *others = classes(module)
    assert root.__name__ in lines
    depth_of = {root.__name__: -4}
    named = [name for line in lines if "── " in line for name in [line.split("── ")[1].split()[0]]]
    assert sorted(named) == sorted(each.__name__ for each in others)
    for each in others:
        base = each.__bases__[0].__name__
        depth_of[each.__name__] = next(line.index("── ") - 1 for line in lines if f"── {each.__name__} " in line)
        assert depth_of[each.__name__] == depth_of[base] + 4


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_only_the_base_of_a_tree_is_called_error(module: ModuleType) -> None:
    assert [each for each in classes(module) if each.__name__.endswith("Error") and not each.__subclasses__()] == []
