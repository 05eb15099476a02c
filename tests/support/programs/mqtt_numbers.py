"""Numbers from an MQTT broker go into files, until the driver is killed or stopped.

    mqtt_numbers FOLDER PORT GUARANTEE

A number of 1000 or more is held in its epoch: FOLDER/held says so, and FOLDER/free lets it go.
"""

import sys
import time
from pathlib import Path

from lockgate import FileSink, Guarantee, Job, MqttSource, run, stream


def job(folder: Path, port: int, guarantee: Guarantee) -> Job:
    def hold(row) -> dict:
        if row.n >= 1000:
            (folder / "held").touch()
            while not (folder / "free").exists():
                time.sleep(0.05)
        return {"n": row.n}

    source = MqttSource(
        topic="plant/#", host="127.0.0.1", port=port, value="n INT", username="meter", password="s3cret"
    )
    numbers = stream("numbers", source).map(hold, "n INT")
    return Job("numbers", numbers.to("out", FileSink(path=str(folder / "out"), format="json")), guarantee=guarantee)


if __name__ == "__main__":
    place, guarantee = Path(sys.argv[1]), Guarantee[sys.argv[3]]
    run(
        job(place, int(sys.argv[2]), guarantee),
        master="local[2]",
        checkpoint=str(place / "checkpoint") if guarantee is Guarantee.AT_LEAST_ONCE else None,
        log_file=place / "spark.log",
    ).wait()
