"""Logs in Parquet: schema, reader, writer, statistics and file systems. Nothing in here loads torch."""
