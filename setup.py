"""All that pyproject.toml cannot say: the examples of the checkout and its lock file travel inside of the package."""

import shutil
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup
from setuptools.command.build_py import build_py


class WithLock(build_py):
    """`lockgate package` takes the hashes of libraries from the lock file."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copyfile("requirements.lock", Path(self.build_lib) / "lockgate" / "deploy" / "requirements.lock")


setup(
    cmdclass={"build_py": WithLock},
    packages=[
        *find_packages(include=["lockgate", "lockgate.*"]),
        "lockgate.examples",
        *(f"lockgate.examples.{name}" for name in find_namespace_packages("examples", exclude=["*__pycache__"])),
    ],
    package_dir={"lockgate.examples": "examples"},
)
