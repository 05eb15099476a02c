"""Feed every target, or some, what costs memory, in a process that may take only so much: a program for a test."""

import gc
import resource
import sys
from pathlib import Path

from fuzz.inputs import BIG, HOSTILE
from fuzz.targets import BY_NAME, TARGETS, Target
from lockgate.connectors.kafka.batches import UNPACKED_BYTES_MAX
from lockgate.connectors.kafka.codecs import Codec
from support.batches import bomb, seal

ROOM_BYTES = 512 << 20
"""Beside what the process has when it begins: a batch that is unpacked twice over, and its copies."""


def inputs_of(target: Target) -> list[bytes]:
    """What may fill the memory in this target."""
    if target.name in ("batches", "records", "codecs"):
        bombs = [(codec, bomb(codec, 40 * UNPACKED_BYTES_MAX)) for codec in (Codec.GZIP, Codec.SNAPPY, Codec.ZSTD)]
        if target.name == "batches":
            return [seal(packed, codec=codec.value) for codec, packed in bombs]
        head = b"" if target.name == "codecs" else b"\1\0"
        return [bytes([codec.value]) + head + packed for codec, packed in bombs]
    return [*BIG, *HOSTILE, *target.crashes]


def main(names: list[str]) -> None:
    targets = [BY_NAME[name] for name in names] or TARGETS
    for target in TARGETS:
        target.check(target.seeds[0])  # what is imported late is no part of the limit
    prepared = [(target, inputs_of(target)) for target in targets]
    gc.collect()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM_BYTES, resource.RLIM_INFINITY))
    for target, inputs in prepared:
        print(target.name, file=sys.stderr, flush=True)  # the last one named is where it stopped
        for content in inputs:
            try:
                target.check(content)
            except MemoryError:
                print(f"{target.name}: {len(content):,} bytes, {content[:40]!r}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
