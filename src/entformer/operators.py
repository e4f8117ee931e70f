"""Registration of the operators with torch, so that saved programs find them.

A program saved by torch.export, AOTInductor or torch.jit names the operators it calls, and loading it fails in a process that
has not registered them. `import entformer` is enough: operators are registered at once if torch is loaded, and otherwise
right after torch is, since `import entformer` alone must not load it.
"""

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["register_operators", "register_with_torch"]

DEFINED_IN = ("entformer.kernels.attention.api", "entformer.functional")


def register_operators() -> None:
    """Registers every operator `torch.ops.entformer.*`, importing torch if needed. Calling it again has no effect.

    `import entformer` does this as soon as torch is imported. Call it to get the error if that registration failed.
    """
    for name in DEFINED_IN:
        importlib.import_module(name)


def register_with_torch() -> None:
    """Registers the operators now if torch is loaded, else when it is."""
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _AfterTorch())
    elif hasattr(torch, "compile"):  # one of the last names it defines: torch is not in the middle of its own import
        _register_quietly()


def _register_quietly() -> None:
    # Importing torch must not fail because of us: the error is raised again when entformer is used.
    if "entformer.kernels" not in sys.modules:  # else one of its modules is being imported and has loaded torch
        with contextlib.suppress(Exception):
            register_operators()


class _AfterTorch(importlib.abc.MetaPathFinder):
    """An import hook that registers the operators once torch has been imported."""

    searching = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch" or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the instance's; the class has its own
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _register_quietly()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
