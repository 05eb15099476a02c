"""Sizes are read as people write them, and nothing else is."""

import pytest

from lockgate.connectors.files.size import as_bytes
from lockgate.errors import BadJob


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128 MB", 128 << 20),
        ("1GB", 1 << 30),
        (" 10 kb ", 10240),
        ("7", 7),
        ("7 b", 7),
        (12345, 12345),
        ("2 TB", 2 << 40),
    ],
)
def test_a_size_is_read(text: object, size: int) -> None:
    assert as_bytes(text, of="roll") == size


@pytest.mark.parametrize(
    "text", ["", "MB", "1.5 MB", "-1 MB", "12 parsecs", 0, -5, 1.5, True, None, "0 MB", "1 MB 2 KB"]
)
def test_what_is_not_a_size_is_refused_with_the_argument_and_the_users_line(text: object) -> None:
    with pytest.raises(BadJob, match=r"roll is not a size") as caught:
        as_bytes(text, of="roll")
    assert "test_size.py" in caught.value.where
    assert "128 MB" in caught.value.fix
