"""Triton's interpreter made fast enough for tests: what it patches once per call of a device function is patched once per process."""

import inspect
from typing import Any


def patch_once() -> None:
    """Has no effect on results; without it, half of the time goes to replacing functions by themselves."""
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
