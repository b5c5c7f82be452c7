"""Look at the first rows of a table and write a first schema for it, to be checked and edited.

SRC is a CSV or Parquet file, or a directory of files of one kind: a path, or an address that pyarrow can open. Comments
explain the guesses, and say what could not be guessed. With the schema, `python -m replay convert` makes a log.

examples:
  python -m replay schema clicks.csv
  python -m replay schema s3://bucket/clicks --output clicks.yaml
"""

import argparse
from pathlib import Path

from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from replay.formats.guess import guess_schema

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("src", metavar="SRC", help="a table: a file, a directory of files, or an address")
    parser.add_argument("--output", metavar="FILE", type=Path, help="YAML file to write (default: print the schema)")


def run(options: argparse.Namespace) -> None:
    output: Path | None = options.output
    if output is not None and output.exists():
        raise InputError(f"{output} exists. Choose another file for --output, or remove it.")
    text = guess_schema(options.src)
    if output is None:
        print(text, end="")
        return
    write_beside(output, lambda file: file.write_text(text, encoding="utf-8"))
    missing = text.count("# MISSING")
    to_do = f" {missing} role{'s are' if missing > 1 else ' is'} missing; see its comments." if missing else ""
    print(f"{output}: a first schema. Check its guesses, then convert with --schema {output}.{to_do}")
