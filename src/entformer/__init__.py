"""Adaptively sparse attention for PyTorch: alpha-entmax with exact zeros and a learned alpha per head.

    import entformer as ef
    weights = ef.entmax(scores, alpha=1.5, dim=-1)

The public names are listed in `__init__.pyi`, where type checkers find them too. They are imported on first use, so that
`import entformer` and `entformer --help` stay light. Operators are registered with torch as soon as both are imported, so saved
programs load.
"""

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

from entformer.operators import register_operators, register_with_torch

__version__ = "0.1.0"

_MODULES: dict[str, str] = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
_PACKAGES = [name for name, module in _MODULES.items() if module == "entformer"]
__all__ = ["__version__", *sorted(_MODULES.keys() - _PACKAGES)]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        # With name and obj, Python adds "Did you mean ...?".
        raise AttributeError(f"module 'entformer' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    if name in _PACKAGES:
        return importlib.import_module(f"entformer.{name}")
    if _MODULES[name].startswith("entformer.kernels"):
        register_operators()  # all of them: the import hook skips it if a kernel module is imported before torch
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])


register_with_torch()
