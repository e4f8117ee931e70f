"""The tag of a wheel; everything else is in pyproject.toml.

A wheel with a compiled library (`src/entformer/prebuilt/`, which scripts/build_wheel.py fills) is for one platform. The library
uses torch's stable ABI and no symbol of Python, so it serves every Python 3. A wheel without one is pure.
"""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class WithLibrary(Distribution):
    """A distribution with compiled files."""

    def has_ext_modules(self) -> bool:
        """Makes the wheel one for this platform."""
        return True


class AnyPython(bdist_wheel):
    """A wheel for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the tags of Python, its ABI and the platform."""
        return "py3", "none", super().get_tag()[2]


if any(Path("src/entformer/prebuilt").glob("*.so")):
    setup(distclass=WithLibrary, cmdclass={"bdist_wheel": AnyPython})
else:
    setup()
