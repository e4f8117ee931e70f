"""What tests of Triton kernels share: when they run, small blocks, and an interpreter that is fast enough.

Triton decides when it is imported whether it interprets, so these tests run in processes of their own, with TRITON_INTERPRET=1:
test_triton_processes.py starts them.
"""

import inspect
from typing import Any

import pytest

from entformer.kernels import triton_host

ONLY_INTERPRETED = pytest.mark.skipif(
    not triton_host.interpreted(), reason="runs in Triton's interpreter, in processes that test_triton_processes.py starts"
)


def use_blocks(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int) -> None:
    """Blocks so small that short sequences have several, whatever the head size."""
    from entformer.kernels.attention.triton import configs

    monkeypatch.setattr(configs, "config", lambda size, dtype: configs.Config(queries, keys, 4, 2))


def patch_once() -> None:
    """Makes the interpreter replace its functions once per process, not in every call: five times faster, same results."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._patch_lang
    patched: set[str] = set()
    names: dict[Any, set[str]] = {}

    class Nothing:
        def restore(self) -> None:
            pass

    def patch(fn: Any) -> Any:
        if fn not in names:
            found = [value for value in fn.__globals__.values() if inspect.ismodule(value) and value in (tl, tl.core)]
            names[fn] = {module.__name__ for module in found}
        if not names[fn] <= patched:
            original(fn)
            patched.update(names[fn])
        return Nothing()

    interpreter._patch_lang = patch


if triton_host.interpreted():
    patch_once()
