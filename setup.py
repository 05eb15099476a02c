"""All that pyproject.toml cannot say: the examples of the checkout travel inside of the package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["lockgate", "lockgate.*"]), "lockgate.examples"],
    package_dir={"lockgate.examples": "examples"},
)
