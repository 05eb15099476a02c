"""Look up classes of the JVM only once.

Py4J asks the JVM for a class by every name that it meets, again at every use: `jvm.functions.col` is three messages.
For a name without its package the JVM searches all jars in all imported packages. One epoch uses hundreds of such
names. Here a class that is often needed is kept as an attribute, and Python finds it without asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass, JavaMember

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

_CLASSES = (
    "SparkConf",
    "PythonUtils",
    "PythonSQLUtils",
    "SimplePythonFunction",
    "functions",
    "java.lang.Runtime",
    "org.apache.hadoop.fs.Path",
    "org.apache.spark.util.Utils",
    "py4j.reflection.TypeUtil",
    "scala.Option",
    "scala.jdk.javaapi.CollectionConverters",
)
# PySpark asks for these by one name with dots, and not package by package.
_WITH_DOTS = (
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.internal.SQLConf",
)


class _KeptClass(JavaClass):  # type: ignore[misc]
    """A class that asks for each of its static methods once."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            setattr(self, name, found)
        return found


def keep_names(jvm: JVMView) -> None:
    """Keep the classes that PySpark and we use in every epoch."""
    for name in (*_CLASSES, *_WITH_DOTS):
        *packages, last = [name] if name in _WITH_DOTS else name.split(".")
        place: Any = jvm
        for package in packages:
            setattr(place, package, getattr(place, package))
            place = getattr(place, package)
        found = getattr(place, last)
        # Only classes are kept: a name that is no class yet may become one when a jar is added.
        if isinstance(found, JavaClass):
            setattr(place, last, _KeptClass(found._fqn, found._gateway_client))
