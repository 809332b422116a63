"""The tables. Every ``@iceberg_table`` in a module of this package becomes an asset: put your own here."""
