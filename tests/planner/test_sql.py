"""A refusal over SQL must always be right, so what Spark takes is never misread; doubt is left to Spark."""

from __future__ import annotations

import pytest

from lockgate.planner.sql import (
    Fold,
    find_bare,
    find_nondeterministic,
    is_idempotent_aggregate,
    read_expression,
    read_fold,
)

# Every expression was given to Spark's own parser; the columns are those that Spark looks for.
COLUMNS = {
    # Units of time are words, not columns.
    "dateadd(DAY, 1, at)": {"at"},
    "date_add(at, 1)": {"at"},
    "dateadd(dayofyear, 2, at)": {"at"},
    "timestampadd(HOUR, n, at)": {"n", "at"},
    "datediff(HOUR, a, b)": {"a", "b"},
    "date_diff(MINUTE, a, b)": {"a", "b"},
    "datediff(a, b)": {"a", "b"},
    "timestampdiff(MINUTE, a, b)": {"a", "b"},
    "timediff(MINUTE, a, b)": {"a", "b"},
    "timediff(MINUTE, minute, b)": {"minute", "b"},
    "extract(DOY FROM at)": {"at"},
    "extract(YEAROFWEEK FROM at)": {"at"},
    "extract(seconds from interval 5 seconds)": set(),
    "date_part('hour', at)": {"at"},
    "date_trunc('hour', at)": {"at"},
    "trunc(at, 'MM')": {"at"},
    "year(at) + month": {"at", "month"},
    "hour + minute": {"hour", "minute"},
    # Intervals and literals.
    "at + interval 1 day": {"at"},
    "at + INTERVAL '1' DAY": {"at"},
    "at - interval '1 02:03:04' day to second": {"at"},
    "at + interval 2 hours 30 minutes": {"at"},
    "n * interval 1 minute": {"n"},
    "make_interval(0, 0, 0, n)": {"n"},
    "DATE'2026-01-01' < at": {"at"},
    "timestamp '2026-01-01 00:00:00' < at": {"at"},
    "1e3 + 10L + 1.5BD + 3.0F + a": {"a"},
    "X'1F' = a": {"a"},
    # Casts and types.
    "cast(a as int)": {"a"},
    "a::int": {"a"},
    "try_cast(a as decimal(10, 2))": {"a"},
    "cast(a as struct<x: int, y: string>)": {"a"},
    "cast(a as map<string, array<int>>)": {"a"},
    "int(a) + bigint(b)": {"a", "b"},
    "timestamp(a)": {"a"},
    "from_json(a, 'x INT, y STRING').x": {"a"},
    # Named arguments.
    "mask(a, upperChar => 'Q')": {"a"},
    "mask(a, lowerChar => b)": {"a", "b"},
    # Names.
    "`odd name` + 1": {"odd name"},
    "`a`.`b c`": {"a"},
    "`a.b` + 1": {"a.b"},
    "date": {"date"},
    "timestamp": {"timestamp"},
    "value": {"value"},
    "window.start": {"window"},
    "position": {"position"},
    "sum(count)": {"count"},
    "_offset": {"_offset"},
    "a /* b */ + c": {"a", "c"},
    "a -- b": {"a"},
    # Fields, elements, entries.
    "a.field[0].x": {"a"},
    "col.field[0].x": {"col"},
    "a.b.c.d.e.f": {"a"},
    "a.b.c.d.e[0].f.g": {"a"},
    "a['k'].x[1]": {"a"},
    "a[b.c]": {"a", "b"},
    "map(a, b)[c]": {"a", "b", "c"},
    "element_at(m, 'k')": {"m"},
    "split(a, ',')[0]": {"a"},
    "struct(a, b).a": {"a", "b"},
    "named_struct('x', a, 'y', b)": {"a", "b"},
    "struct(a as x, b)": {"a", "b"},
    # Functions of functions: their parameters are no columns, what they close over is.
    "transform(xs, x -> x + a)": {"xs", "a"},
    "transform(xs, (x, i) -> x + i)": {"xs"},
    "filter(xs, x -> x.y > b)": {"xs", "b"},
    "aggregate(xs, 0, (acc, x) -> acc + x, acc -> acc * 10)": {"xs"},
    "exists(xs, x -> x is null)": {"xs"},
    "zip_with(xs, ys, (x, y) -> x + y)": {"xs", "ys"},
    "map_filter(m, (k, v) -> v > 0)": {"m"},
    "array_sort(xs, (l, r) -> case when l < r then -1 else 1 end)": {"xs"},
    "transform(xs, x -> transform(x.ys, y -> y + x.z))": {"xs"},
    # Conditions.
    "case when a > 1 then 'x' when b then 'y' else c end": {"a", "b", "c"},
    "case a when 1 then b end": {"a", "b"},
    "if(a > 1, b, c)": {"a", "b", "c"},
    "a in (1, 2, b)": {"a", "b"},
    "a not in ('x', 'y')": {"a"},
    "(a, b) in ((1, 2))": {"a", "b"},
    "a between b and c": {"a", "b", "c"},
    "a <=> b": {"a", "b"},
    "a is not distinct from b": {"a", "b"},
    "a like '%it''s%' and b rlike '^\\\\d+$'": {"a", "b"},
    "a like any ('x', 'y')": {"a"},
    "!a or not b": {"a", "b"},
    "a div b % c & d | ~e": {"a", "b", "c", "d", "e"},
    # Strings in either quotes.
    "concat('a', \"b\", c)": {"c"},
    "'it\\'s ' || a": {"a"},
    "to_timestamp(a, \"yyyy-MM-dd'T'HH:mm\")": {"a"},
    "substring(a from 1 for 2)": {"a"},
    "trim(both 'x' from a)": {"a"},
    "overlay(a placing 'x' from 2 for 1)": {"a"},
    # Windows and arrays.
    "window(at, '1 minute')": {"at"},
    "sum(a) over (partition by b order by c desc rows between 1 preceding and current row)": {"a", "b", "c"},
    "lag(a, 1) over (order by at)": {"a", "at"},
    "array(a, b)[0]": {"a", "b"},
    "array_contains(xs, a)": {"xs", "a"},
    "sequence(a, b, interval 1 day)": {"a", "b"},
    # Aggregates.
    "count(*)": set(),
    "count(1)": set(),
    "count(distinct a, b)": {"a", "b"},
    "count(*) filter (where a > 1)": {"a"},
    "first(a) ignore nulls": {"a"},
    "percentile_cont(0.5) within group (order by a)": {"a"},
    "listagg(a, ',') within group (order by b)": {"a", "b"},
    # Functions that need no brackets.
    "current_date": set(),
    "current_timestamp > at": {"at"},
    "current_user": set(),
    "user": set(),
    "session_user = a": {"a"},
}


@pytest.mark.parametrize("sql", COLUMNS)
def test_the_columns_of_an_expression_are_those_that_spark_looks_for(sql: str) -> None:
    facts = read_expression(sql)
    assert facts is not None
    assert facts.columns == COLUMNS[sql]


@pytest.mark.parametrize(
    "sql",
    [
        "a +",
        "select(",
        "insert(a, 1, 2, 'x')",
        "a:b.c",
        "struct(*)",
        "(select max(x) from t)",
        "a in (select b from t)",
    ],
)
def test_what_cannot_be_judged_here_is_left_to_spark(sql: str) -> None:
    assert read_expression(sql) is None


@pytest.mark.parametrize(
    "sql", ["sum(a)", "max(a) - min(b)", "count(*)", "1 + avg(a)", "bool_or(a)", "any(a)", "some(a)"]
)
def test_an_aggregate_is_recognised(sql: str) -> None:
    facts = read_expression(sql)
    assert facts is not None
    assert facts.is_aggregate


@pytest.mark.parametrize("sql", ["a + 1", "upper(a)", "greatest(a, b)", "a like any ('x', 'y')", "array_max(xs)"])
def test_what_looks_at_one_row_is_no_aggregate(sql: str) -> None:
    facts = read_expression(sql)
    assert facts is not None
    assert not facts.is_aggregate


@pytest.mark.parametrize(
    ("sql", "function"),
    [
        ("rand()", "RAND"),
        ("rand(3)", "RAND"),
        ("random()", "RANDOM"),
        ("1 + randn()", "RANDN"),
        ("concat(a, uuid())", "UUID"),
        ("shuffle(xs)", "SHUFFLE"),
        ("uniform(1, 10)", "UNIFORM"),
        ("randstr(5)", "RANDSTR"),
        ("monotonically_increasing_id()", "MONOTONICALLY_INCREASING_ID"),
        ("spark_partition_id()", "SPARK_PARTITION_ID"),
        ("input_file_name()", "INPUT_FILE_NAME"),
        ("input_file_block_start()", "INPUT_FILE_BLOCK_START"),
        ("reflect('java.util.UUID', 'randomUUID')", "REFLECT"),
        ("try_reflect('java.util.UUID', 'randomUUID')", "TRY_REFLECT"),
        ("java_method('java.util.UUID', 'randomUUID')", "JAVA_METHOD"),
        ("case when a then uuid() end", "UUID"),
        ("transform(xs, x -> x + rand())", "RAND"),
        ("sum(rand())", "RAND"),
        ("aes_encrypt(a, k)", "AES_ENCRYPT"),
        ("current_time()", "CURRENT_TIME"),
        ("localtime(3)", "LOCALTIME"),
        ("current_timestamp(3)", "CURRENT_TIMESTAMP"),
        ("kll_sketch_agg_bigint(a)", "KLL_SKETCH_AGG_BIGINT"),
        ("histogram_numeric(a, 5)", "HISTOGRAM_NUMERIC"),
        ("current_user()", "CURRENT_USER"),
        ("at > TIMESTAMP'now'", "'now'"),
        ("cast(' today ' as date)", "' today '"),
        ("to_date('yesterday UTC')", "'yesterday UTC'"),
        # A function that Spark does not have is the user's own.
        ("my_own(a)", "MY_OWN"),
        # Not judged column by column, and still not taken for deterministic.
        ("struct(*, rand())", "RAND"),
        ("insert(uuid (), 1, 2, a)", "UUID"),
        # Nothing hides a call: no quote, no comment, no escape, no name in backticks.
        ("`a'` + rand() + `b'`", "RAND"),
        ("`a--b` + rand()", "RAND"),
        (r"concat(r'\', cast(rand() as string), '')", "RAND"),
        ("'it''s' || rand()", "RAND"),
        ("/* /* */ ' */ rand() -- '", "RAND"),
        ("-- a\rrand()", "RAND"),
        ("`rand` ()", "RAND"),
        ("system.builtin.rand()", "RAND"),
        ("IDENTIFIER('rand')()", "IDENTIFIER"),
        # Nor does what sqlglot cannot read, or knows and Spark does not.
        ("my_own(a):b.c", "MY_OWN"),
        ("try_cast(my_own(a) as int)", "MY_OWN"),
        ("md5_digest(a)", "MD5_DIGEST"),
        ("mine.abs(a)", "ABS"),
        ("`mine`.abs(a)", "ABS"),
        # A query may find something else the next time.
        ("id in (select id from parquet.`/data/allowed`)", "SELECT"),
        ("(with t as (select 1) select * from t)", "WITH"),
        ("a in (values (1), (2))", "VALUES"),
        # Spark casts these by itself where a moment is wanted.
        ("at < 'now'", "'now'"),
        ("at between 'yesterday' and b", "'yesterday'"),
        ("date_add('today', 1)", "'today'"),
        ("coalesce(at, 'now')", "'now'"),
        ("case when at is null then 'now' else at end", "'now'"),
        ('cast("now" as timestamp)', "'now'"),
        (r"at < 'n\u006fw'", "'now'"),
        ("at < 'no' 'w'", "'now'"),
        ("at < 'today Europe/Berlin'", "'today Europe/Berlin'"),
    ],
)
def test_a_function_that_gives_other_results_on_a_replay_is_found(sql: str, function: str) -> None:
    assert find_nondeterministic(sql) == function


@pytest.mark.parametrize(
    "sql",
    [
        "a + 1",
        "current_timestamp()",  # fixed for the epoch and logged with it
        "current_timestamp() - at",
        "'rand()' = name -- uuid()",
        "hash(a)",
        "rand",
        "uuid || 'x'",
        "'rand()'",
        "'today' = name",
        "unix_timestamp()",
        "current_date()",
        "sum(a) / count(*)",
        "struct(*)",
        "`select` + `a'b`",
        "name in ('today', 'now')",
        "concat(`user`, user.name, x as user)",
    ],
)
def test_what_is_replayed_as_it_was_is_deterministic(sql: str) -> None:
    assert find_nondeterministic(sql) is None


@pytest.mark.parametrize(
    "sql", ["current_time", "a > localtime", "to_json(struct(*, user))", "SESSION_USER = a", "my_own(current_user):b"]
)
def test_a_name_that_spark_may_take_for_a_function_is_found(sql: str) -> None:
    assert len(find_bare(sql)) == 1


@pytest.mark.parametrize("sql", ["user.name", "a.user", "current_user()", "struct(1 AS user)", "'user'", "users", "b"])
def test_a_name_that_can_only_be_a_column_is_no_function(sql: str) -> None:
    assert find_bare(sql) == frozenset()


def test_ordinary_sql_is_deterministic() -> None:
    assert {sql: found for sql in COLUMNS if (found := find_nondeterministic(sql)) is not None} == {
        "lag(a, 1) over (order by at)": "LAG",
        "first(a) ignore nulls": "FIRST",
        "listagg(a, ',') within group (order by b)": "LISTAGG",
    }


@pytest.mark.parametrize(
    "sql",
    [
        "max(a)",
        "MIN(a)",
        "max(a) - min(b)",
        "max(a) filter (where b > 0)",
        "bool_or(a)",
        "bool_and(a)",
        "every(a)",
        "some(a)",
        "any(a)",
        "bit_or(a)",
        "bit_and(a)",
        "approx_count_distinct(a)",
        "collect_set(a)",
        "round(max(a), 2)",
    ],
)
def test_an_event_that_comes_twice_changes_no_extreme_and_no_set(sql: str) -> None:
    assert is_idempotent_aggregate(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "sum(a)",
        "count(*)",
        "avg(a)",
        "max(a) + count(*)",
        "bit_xor(a)",
        "collect_list(a)",
        "try_sum(a)",
        "max(a) + try_sum(b)",
        "count_if(a)",
        "max(my_own(a))",
        "percentile_approx(a, 0.5)",
        "a",
        "a +",
    ],
)
def test_what_a_repeated_event_may_change_is_not_taken_for_idempotent(sql: str) -> None:
    assert not is_idempotent_aggregate(sql)


@pytest.mark.parametrize(
    ("sql", "fold"),
    [
        ("sum(amount)", Fold(function="sum", argument="amount")),
        ("SUM( price * count )", Fold(function="sum", argument="price * count")),
        ("min(a)", Fold(function="min", argument="a")),
        ("max(abs(a - (b)))", Fold(function="max", argument="abs(a - (b))")),
        ("avg(a)", Fold(function="avg", argument="a")),
        ("count(a)", Fold(function="count", argument="a")),
        ("count(1)", Fold(function="count", argument="1")),
        ("count(*)", Fold(function="count", argument=None)),
    ],
)
def test_a_rolling_aggregate_is_a_fold_over_the_users_own_expression(sql: str, fold: Fold) -> None:
    assert read_fold(sql) == fold


@pytest.mark.parametrize(
    "sql",
    [
        "sum(a) + 1",
        "sum(distinct a)",
        "count(distinct a)",
        "count(a, b)",
        "max(sum(a))",
        "first(a)",
        "a",
        "upper(a)",
        "sum(a) filter (where b)",
        "sum(a) over (partition by b)",
        "sum(",
    ],
)
def test_what_is_no_single_fold_is_not_taken_for_one(sql: str) -> None:
    assert read_fold(sql) is None
