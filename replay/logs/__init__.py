"""Logs in Parquet: schema, reader, writer, statistics, file systems."""
