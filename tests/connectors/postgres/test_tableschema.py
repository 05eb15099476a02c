"""Rows go only into tables that take all of them; what does not fit is told at once, with its cure."""

from typing import Any

import pytest

from lockgate.connectors.postgres.tableschema import (
    RowColumn,
    Table,
    TableColumn,
    TableName,
    create_statement,
    find_table,
    fit,
    made_type,
    parse_name,
    takes,
)
from lockgate.errors import BadJob, Refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", TableName(None, "orders")),
        ("sales.orders", TableName("sales", "orders")),
        ('"odd.name"', TableName(None, "odd.name")),
        ('a b."say ""hi"""', TableName("a b", 'say "hi"')),
    ],
)
def test_names_are_read_as_they_are_written(text: str, expected: TableName) -> None:
    assert parse_name(text, where="test") == expected


@pytest.mark.parametrize("text", ["", ".", "a.", "a.b.c", 'a"b', '"a', "a\0b"])
def test_what_names_no_table_is_refused(text: str) -> None:
    with pytest.raises(BadJob, match="names no table"):
        parse_name(text, where="test")


@pytest.mark.parametrize(
    ("spark", "postgres"),
    [
        ("tinyint", "smallint"),
        ("int", "integer"),
        ("decimal(12,2)", "numeric(12,2)"),
        ("timestamp", "timestamp with time zone"),
        ("timestamp_ntz", "timestamp without time zone"),
        ("array<int>", "jsonb"),
        ("struct<a:int,b:string>", "jsonb"),
        ("string collate UNICODE", "text"),
        ("interval day to second", None),
        ("void", None),
    ],
)
def test_each_type_is_made_as_one_type(spark: str, postgres: str | None) -> None:
    assert made_type(RowColumn("x", spark)) == postgres


@pytest.mark.parametrize(
    ("spark", "base", "digits", "expected"),
    [
        ("int", "int8", None, True),
        ("int", "int2", None, False),
        ("bigint", "float8", None, False),
        ("int", "numeric", (10, 0), True),
        ("int", "numeric", (9, 3), False),
        ("bigint", "numeric", None, True),
        ("float", "float8", None, True),
        ("double", "float4", None, False),
        ("decimal(10,2)", "numeric", (8, 2), True),
        ("decimal(10,2)", "numeric", (8, 1), False),
        ("decimal(10,2)", "numeric", (7, 3), False),
        ("decimal(18,0)", "int8", None, True),
        ("decimal(19,0)", "int8", None, False),
        ("decimal(4,1)", "int8", None, False),
        ("decimal(4,1)", "float8", None, False),
        ("timestamp", "timestamp", None, False),
        ("timestamp", "timestamptz", None, True),
        ("timestamp_ntz", "timestamptz", None, False),
        ("string", "uuid", None, True),
        ("string", "inet", None, True),
        ("string", "int4", None, False),
        ("binary", "bytea", None, True),
        ("binary", "text", None, False),
        ("array<int>", "jsonb", None, True),
        ("array<int>", "_int4", None, False),
        ("map<string,int>", "json", None, True),
        ("boolean", "bool", None, True),
        ("boolean", "int4", None, False),
    ],
)
def test_a_type_takes_what_it_can_hold(spark: str, base: str, digits: Any, expected: bool) -> None:
    assert takes(TableColumn("x", base, base, digits=digits), RowColumn("x", spark)) is expected


def test_the_statement_quotes_every_name() -> None:
    rows = [RowColumn('a "b"', "int"), RowColumn("Größe", "decimal(5,1)")]
    statement = create_statement(TableName("my schema", "t;--"), rows, ['A "B"'], "test").as_string(None)
    assert statement == (
        'CREATE TABLE "my schema"."t;--" ("a ""b""" integer, "Größe" numeric(5,1), PRIMARY KEY ("a ""b"""))'
    )


def test_a_type_without_a_form_is_refused() -> None:
    with pytest.raises(Refused, match=r"'span' \(interval day to second\)"):
        create_statement(TableName(None, "t"), [RowColumn("span", "interval day to second")], [], "test")


def test_two_columns_that_differ_only_in_case_are_not_guessed_between() -> None:
    columns = (TableColumn("A", "integer", "int4"), TableColumn("a", "integer", "int4"))
    table = Table(TableName("s", "t"), "r", columns, frozenset(), ())
    assert [one.column.name for one in fit(table, [RowColumn("a", "int")], [], "test")] == ["a"]
    table = Table(
        TableName("s", "t"),
        "r",
        (TableColumn("AB", "integer", "int4"), TableColumn("Ab", "integer", "int4")),
        frozenset(),
        (),
    )
    with pytest.raises(Refused, match="no such column"):
        fit(table, [RowColumn("ab", "int")], [], "test")


def test_a_key_has_to_come_with_the_rows() -> None:
    columns = (TableColumn("id", "integer", "int4"), TableColumn("n", "integer", "int4"))
    table = Table(TableName("s", "t"), "r", columns, frozenset({frozenset({"id"})}), ())
    with pytest.raises(Refused, match="key id: does not come"):
        fit(table, [RowColumn("n", "int")], ["id"], "test")


@pytest.mark.system
def test_every_difference_is_reported_at_once_with_its_fix(database: Any) -> None:
    database.execute(
        "CREATE TABLE odd (id int, narrow int, small numeric(4, 2), made int GENERATED ALWAYS AS (id + 1) STORED,"
        " serial int GENERATED ALWAYS AS IDENTITY, needed text NOT NULL, filled text NOT NULL DEFAULT 'x')"
    )
    database.execute("CREATE UNIQUE INDEX ON odd (id, narrow)")
    database.execute("CREATE UNIQUE INDEX ON odd (id) WHERE narrow > 0")
    database.execute("CREATE UNIQUE INDEX ON odd ((id + 1))")
    database.execute("ALTER TABLE odd ADD UNIQUE (id) DEFERRABLE")
    table = find_table(database, TableName(None, "odd"))
    assert table is not None
    rows = [
        RowColumn("id", "int"),
        RowColumn("narrow", "bigint"),
        RowColumn("small", "decimal(5,2)"),
        RowColumn("made", "int"),
        RowColumn("serial", "int"),
        RowColumn("more", "string"),
    ]
    with pytest.raises(Refused) as raised:
        fit(table, rows, ["id"], "test")
    told = raised.value.what.splitlines()
    assert "7 differences" in told[0]
    assert [line.strip() for line in told[1:]] == [
        "column 'narrow': comes as bigint, the table has integer",
        "column 'small': comes as decimal(5,2), the table has numeric(4,2)",
        "column 'made': comes as int, the table makes it by itself",
        "column 'serial': comes as int, the table makes it by itself",
        "column 'more': comes as string, the table has no such column",
        "column 'needed': does not come, the table has text not null, no default",
        "key id: the table has no unique index over exactly that, which an upsert goes by",
    ]
    for cure in ('"narrow" TYPE bigint', 'ADD COLUMN "more" text', "CREATE UNIQUE INDEX ON"):
        assert cure in raised.value.fix


@pytest.mark.system
def test_a_table_of_all_kinds_of_columns_fits(database: Any) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    database.execute("CREATE DOMAIN cents AS numeric(12, 2) CHECK (VALUE >= 0)")
    database.execute(
        "CREATE TABLE wide (Id int PRIMARY KEY, mood mood, price cents, code varchar(5), label char(3), body jsonb,"
        " from_where inet, id2 uuid, big numeric, included int)"
    )
    database.execute("CREATE UNIQUE INDEX ON wide (code) INCLUDE (included)")
    table = find_table(database, TableName(None, "wide"))
    assert table is not None
    rows = [RowColumn("ID", "int"), RowColumn("price", "decimal(12,2)"), RowColumn("body", "struct<a:int>")]
    rows += [RowColumn(name, "string") for name in ("mood", "code", "label", "from_where", "id2")]
    rows += [RowColumn("big", "decimal(38,18)")]
    assert [one.column.name for one in fit(table, rows, ["Id"], "test")][:2] == ["id", "price"]
    assert fit(table, rows, ["code"], "test"), "an index that only carries other columns is unique over its key"


@pytest.mark.system
def test_a_column_is_staged_with_the_collation_that_its_key_goes_by(database: Any) -> None:
    database.execute('CREATE TABLE texts (a text, b text COLLATE "C", c varchar(3) COLLATE "POSIX")')
    table = find_table(database, TableName(None, "texts"))
    assert table is not None
    shown = [column.declaration for column in table.columns]
    assert shown == ["text", 'text COLLATE pg_catalog."C"', 'character varying(3) COLLATE pg_catalog."POSIX"']


@pytest.mark.system
def test_a_view_and_missing_rights_are_refused(database: Any) -> None:
    database.execute("CREATE TABLE there (id int)")
    database.execute("CREATE VIEW seen AS SELECT * FROM there")
    view = find_table(database, TableName(None, "seen"))
    assert view is not None
    with pytest.raises(Refused, match="it is a view"):
        fit(view, [RowColumn("id", "int")], [], "test")
    database.execute("DROP ROLE IF EXISTS weak")
    database.execute("CREATE ROLE weak")
    database.execute("GRANT SELECT ON there TO weak")
    schema = database.execute("SELECT current_schema()").fetchone()[0]
    database.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO weak')
    database.execute("SET ROLE weak")
    table = find_table(database, TableName(None, "there"), rights=("SELECT", "INSERT", "DELETE"))
    database.execute("RESET ROLE")
    assert table is not None
    with pytest.raises(Refused, match="no right to INSERT, DELETE"):
        fit(table, [RowColumn("id", "int")], [], "test")


@pytest.mark.system
def test_a_table_that_is_not_there_is_not_found(database: Any) -> None:
    assert find_table(database, TableName(None, "nowhere")) is None
    assert find_table(database, TableName("no schema", "nowhere")) is None
