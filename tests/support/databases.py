"""Databases for tests: a schema of a test's own."""

from uuid import uuid4

import psycopg


def with_schema(dsn: str) -> str:
    """Make a schema, with a name that has to be quoted; the DSN whose search path is that schema."""
    schema = f"Test-{uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"')
    return f"{dsn}?options=-csearch_path%3D%22{schema}%22"
