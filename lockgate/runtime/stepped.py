"""The run of a test harness: its time stands still, and no epoch begins unless the stepper says so."""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.runtime.running import Run
from lockgate.spark.stepping import Stepper

_TICK_MS = 2


@dataclass(kw_only=True)
class SteppedRun(Run):
    """A run whose clock is a stepper."""

    stepper: Stepper
    _settled: int | None = None  # the newest epoch when it settled; None before the first step of a query

    def settle(self) -> None:
        """Let epochs run until another one would change nothing.

        Raises:
            Failed: something went wrong while the job ran.
        """
        stepper, checkpoint = self.stepper, Checkpoint(root=self.checkpoint)
        while True:
            before = self._settled
            is_alive = stepper.wait(self._is_alive) if before is None else stepper.step(self._is_alive)
            if not is_alive:
                if not self._restart():
                    self._finish()
                    return
                self._settled = None
                continue
            self._settled = max(checkpoint.epochs("commits"), default=-1)
            # If a step uses the clock, Spark runs epochs forever.
            is_still = self._settled == before or (
                self.goes_by_clock and checkpoint.is_still(self._settled, stepper.now_ms)
            )
            if not self._release_events() and is_still:
                return
            if self.goes_by_clock:
                stepper.now_ms += _TICK_MS  # such a step reads the watermark when the clock has moved

    def _is_alive(self) -> bool:
        return self.is_running

    def _release_events(self) -> bool:
        """Release the events that wait for a retry: the time until then never passes by itself."""
        acker = self._acker
        if acker is None:
            return False
        acker.release(float("inf"))
        acker.clean()
        return acker.take_released() > 0

    def _look(self) -> None:
        """Take no reports: when time stands still, they have rates that PySpark cannot read."""

    def _stop_query(self) -> None:
        self._writer.commits.stop()
        self.stepper.stop(self._query)
