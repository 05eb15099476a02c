"""Refuse words that the style does not use, and lines of documents that are too long.

`scripts/prose.toml` has the words with better ones, the finished files, and the files that are still to do. Only
finished files are checked, so the list grows file by file until `to_do` is empty.

    Markdown    sentences, headings and tables; not code between backticks, and not the addresses of links
    templates   what a reader sees, and comments
    Python      comments, docstrings and other strings of several words: errors and help texts are read, too

Exit status 0 = nothing was found, 1 = something was.

    python scripts/prose.py               check the finished files
    python scripts/prose.py FILE ...      check these files, finished or not
    python scripts/prose.py --to-do       list the files that are still to do
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = Path(__file__).with_suffix(".toml")
LINE_LENGTH = 120
# Python 3.12 gives the text of an f-string as a token of its own; before that the whole f-string is one STRING.
_TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


@dataclass(frozen=True)
class Rule:
    """A pattern that no text may match, what to write instead, and two examples that the tests read."""

    avoid: str
    write: str
    wrong: str
    right: str

    def places(self, text: str) -> Iterator[re.Match[str]]:
        return re.finditer(self.avoid, text, re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Settings:
    rules: tuple[Rule, ...]
    finished: tuple[str, ...]
    to_do: tuple[str, ...]

    def is_finished(self, path: str) -> bool | None:
        """The answer of the longest entry that is this file or a folder above it; None if there is no such entry."""
        entries = [(len(one), one in self.finished) for one in (*self.finished, *self.to_do) if is_below(path, one)]
        return max(entries)[1] if entries else None


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    found: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found}\n  fix: {self.fix}"


def is_below(path: str, entry: str) -> bool:
    return path == entry or path.startswith(f"{entry}/")


def load(path: Path = SETTINGS) -> Settings:
    values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    rules = tuple(Rule(**rule) for rule in values["words"])
    return Settings(rules, tuple(values["finished"]), tuple(values["to_do"]))


def files(root: Path, entries: Iterable[str]) -> list[str]:
    """Every Markdown file, template and Python file among these entries, or below them."""
    found = set()
    for entry in entries:
        place = root / entry
        found |= {place} if place.is_file() else {file for kind in TEXT_OF for file in place.rglob(f"*{kind}")}
    return sorted(file.relative_to(root).as_posix() for file in found)


def check(path: str, source: str, rules: Iterable[Rule]) -> list[Finding]:
    is_page = path.endswith(".md")
    text, lines = flowing(TEXT_OF[Path(path).suffix](source))
    found = [
        Finding(path, lines[match.start()], f"'{match[0].strip()}'", f"write {rule.write}")
        for rule in rules
        for match in rule.places(text)
    ]
    if is_page:
        # Fenced blocks stay as they are: commands and outputs are quoted as programs print them.
        found += [
            Finding(path, number, f"{len(line)} characters", f"at most {LINE_LENGTH} characters in a line")
            for number, line in enumerate(without_blocks(source).splitlines(), 1)
            if len(line.rstrip()) > LINE_LENGTH
        ]
    return sorted(found, key=lambda one: one.line)


def flowing(text: str) -> tuple[str, list[int]]:
    """The text with each paragraph in one line, because a sentence may span lines; and each character's line."""
    characters, lines, line = "", [], 1
    for part in re.findall(r"\s+|\S+", text):
        kept = part if not part.isspace() else "\n" if part.count("\n") > 1 else " "
        characters += kept
        lines += [line] * len(kept)
        line += part.count("\n")
    return characters, lines


# Each of these returns a text of the same length and the same lines, with blanks in place of what is not checked.


def blank(text: str) -> str:
    return re.sub(r"\S", " ", text)


def without(pattern: str, text: str) -> str:
    return re.sub(pattern, lambda match: blank(match[0]), text, flags=re.DOTALL | re.MULTILINE)


def without_blocks(source: str) -> str:
    return without(r"^ *```.*?^ *```", source)


def text_of_page(source: str) -> str:
    text = without(r"<!--.*?-->", without_blocks(source))
    return without(r"`[^`]*`|\]\([^)]*\)", text)


def text_of_template(source: str) -> str:
    return without(r"<(style|script)>.*?</\1>|\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", source)


def text_of_module(source: str) -> str:
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = list(blank(source))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXTS:
            words = text_of_token(token)
            start = starts[token.start[0] - 1] + token.start[1]
            text[start : start + len(words)] = words
    return "".join(text)


def text_of_token(token: tokenize.TokenInfo) -> str:
    if token.type != tokenize.COMMENT and not re.search(r"\s", token.string):
        return blank(token.string)  # a name, such as a column or a key
    text = without(r"^\s*#|``?[^`]*``?|\{[^{}]*\}|^\s*(>>>|\.\.\.).*?$", token.string)
    return re.sub(r"^ *#:?", lambda match: blank(match[0]), text)


TEXT_OF = {".md": text_of_page, ".jinja": text_of_template, ".py": text_of_module}


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Check the English of finished files.")
    parser.add_argument("file", nargs="*", help="check these files, finished or not")
    parser.add_argument("--to-do", action="store_true", help="list the files that are still to do")
    options = parser.parse_args(arguments)
    settings = load()
    if options.to_do:
        print("\n".join(path for path in files(root, settings.to_do) if not settings.is_finished(path)))
        return 0
    chosen = [Path(file).resolve().relative_to(root).as_posix() for file in options.file]
    paths = chosen or [path for path in files(root, settings.finished) if settings.is_finished(path)]
    found = [one for path in paths for one in check(path, (root / path).read_text(encoding="utf-8"), settings.rules)]
    for one in found:
        print(one)
    print(f"{len(found)} found in {len(paths)} files", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
