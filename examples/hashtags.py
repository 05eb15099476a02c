"""What are people talking about? Hashtags counted per minute, from a topic of posts into a topic of counts.

lockgate plan examples/hashtags.py      the graphs and the guarantee; needs no broker
python examples/hashtags.py             the same, then a run over two thousand made-up posts
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Row

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, explain, stream, windows
from lockgate.lab.demo import terminal
from lockgate.lab.demo.example import in_topics, run_main


def job(servers: str = "localhost:9092", posts: str = "posts", counts: str = "hashtag-counts") -> Job:
    """How often each hashtag was used in each minute; posts may arrive ten seconds out of order."""
    counted = (
        stream("posts", KafkaSource(topic=posts, servers=servers, value="author STRING, text STRING, at TIMESTAMP"))
        .flat_map(find_hashtags, "hashtag STRING, at TIMESTAMP")
        .event_time("at", lateness=timedelta(seconds=10))
        .key_by("hashtag")
        .window(windows.tumbling(timedelta(minutes=1)))
        .aggregate(uses="count(*)")
    )
    return Job(
        "hashtags",
        counted.to("counts", KafkaSink(topic=counts, servers=servers, key="hashtag")),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )


def find_hashtags(post: Row) -> Iterator[tuple[str, datetime]]:
    """Every hashtag of a post, in lower case, as often as it is used."""
    for hashtag in re.findall(r"#(\w+)", post.text):
        yield hashtag.lower(), post.at


def answer(events: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The same without Spark, for `lockgate prove`, which marks events of a closed minute as `_late`.

    A post without a hashtag does not move the time.
    """
    minute = timedelta(minutes=1)
    used = [
        (word.lower(), post["at"])
        for post in events["posts"]
        if not post["_late"]
        for word in re.findall(r"#(\w+)", post["text"])
    ]
    if not used:
        return {"counts": []}
    watermark = max(at for _, at in used) - timedelta(seconds=10)
    counts = Counter((hashtag, at.replace(second=0, microsecond=0)) for hashtag, at in used)
    rows = [
        {"hashtag": hashtag, "window_start": start, "window_end": start + minute, "uses": count}
        for (hashtag, start), count in counts.items()
        if start + minute <= watermark
    ]
    return {"counts": rows}


def make_posts(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Posts of five minutes, a little out of order; one hashtag becomes more and more popular."""
    rng = random.Random(seed)
    began = datetime(2026, 1, 1, 12, tzinfo=UTC)
    hashtags = ["#Spark", "#spark", "#kafka", "#streaming", "#exactlyonce", "#coffee"]
    for number in range(count):
        at = began + number * timedelta(minutes=5) / count + timedelta(seconds=rng.uniform(0, 5))
        used = rng.choices(hashtags, weights=[8, 4, 5, 3, 1 + 8 * number / count, 2], k=rng.randint(0, 3))
        yield {"author": f"user-{rng.randrange(50)}", "text": " ".join(["hello", *used]), "at": at.isoformat()}


def main(servers: str | None = None) -> None:
    """Show the graphs, send posts, count their hashtags, show the trends."""
    with in_topics("posts", "counts", servers=servers) as tryout:
        described = job(**tryout.places)
        print(explain(described))
        tryout.send("posts", make_posts(count=2000, seed=7))
        tryout.run(described)
        rows = tryout.rows("counts")
    minutes = sorted({row["window_start"] for row in rows})
    uses = {(row["hashtag"], row["window_start"]): row["uses"] for row in rows}
    # A minute in which a hashtag was not used has no row.
    trends = {hashtag: [uses.get((hashtag, minute), 0) for minute in minutes] for hashtag, _ in uses}
    for hashtag, some in sorted(trends.items(), key=lambda item: -sum(item[1])):
        print(f"#{hashtag:12} {terminal.sparkline(some, floor=0)}  {sum(some):4} uses, {some[-1]} in the latest minute")
    print("\nThe next minute is still open: it closes when a post arrives that is ten seconds later than its end.")


if __name__ == "__main__":
    run_main(main)
