"""The reference interpreter: what a random job has to give, by docs/ alone, and whether a run gave it."""

from lockgate.lab.randomjobs.interpreter.answer import Answer, OutputAnswer, expected
from lockgate.lab.randomjobs.interpreter.compare import Difference, compare

__all__ = ["Answer", "Difference", "OutputAnswer", "compare", "expected"]
