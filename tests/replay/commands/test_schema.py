"""A first schema is guessed from a table; with it, the table is converted."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nl_lightning.core.errors import InputError
from replay.__main__ import main
from replay.formats.guess import guess_schema
from replay.logs.reader import Log
from replay.logs.schema import Columns, Schema
from tests.support.fresh_interpreter import heavy_after
from tests.support.own_table import event, typed, write_csv, write_parquet

ROWS = [event(i) for i in range(40)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_guess_converts_the_table(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write = write_csv if kind == "csv" else write_parquet
    file, output = write(tmp_path / f"x.{kind}", ROWS), tmp_path / "mine.yaml"
    main(["schema", str(file), "--output", str(output)])
    assert "Check its guesses" in capsys.readouterr().out
    schema = Schema.read(output)
    assert (schema.action, schema.reward, schema.propensity, schema.timestamp) == ("item", "click", "p", "time")
    assert (schema.candidates, schema.pair) == ("shown", ("affinity",))
    assert "age" in schema.context.numeric
    assert "country" in schema.context.categorical
    assert "page" not in schema.context.numeric  # it numbers the rows
    main(["convert", str(file), str(tmp_path / "log"), "--schema", str(output)])
    assert "40 rows, 10 clicks, CTR 25.000%, 0 rows skipped" in capsys.readouterr().out
    assert Log(tmp_path / "log").rows == 40
    main(["convert", str(file), str(tmp_path / "log"), "--schema", str(output)])
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["schema", str(file), "--output", str(output)])
    assert "exists. Choose another file" in capsys.readouterr().err


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    table = pa.table({"age": [1.5, 2.5, 4.0], "on": ["x", "y", "x"], "click": [0, 1, 0]})
    pq.write_table(table, tmp_path / "x.parquet")
    text = guess_schema(tmp_path / "x.parquet")
    assert "# MISSING: action. Expected the column of the action that was shown" in text
    assert "one of age, on" in text
    assert "logging: estimated  # " in text
    (tmp_path / "mine.yaml").write_text(text + "action: 'on'\n")
    with pytest.raises(InputError, match="two roles"):
        Schema.read(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text(text.replace('    - "on"', "    # ") + "action: 'on'\n")
    assert Schema.read(tmp_path / "mine.yaml").context == Columns(("age",))


def test_names_and_values_of_all_kinds(tmp_path: Path) -> None:
    table = typed(ROWS).rename_columns(["time", "item", "click", "p", "yes", "a: #b\n", "shown", "é", "1", "null", "u"])
    pq.write_table(table, tmp_path / "x.parquet")
    (tmp_path / "mine.yaml").write_text(guess_schema(tmp_path / "x.parquet"))
    schema = Schema.read(tmp_path / "mine.yaml")
    assert schema.context.numeric == ("yes",)
    assert "a: #b\n" in schema.context.categorical
    assert schema.pair == ("é",)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "no header"), ("a,b\n", "a header and no rows"), ("a;b\n1;2\n", "Expected commas between the columns")],
)
def test_no_table_to_look_at(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(SystemExit):
        main(["schema", str(tmp_path / "x.csv")])
    assert words in capsys.readouterr().err


def test_a_table_without_a_schema_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)
    with pytest.raises(SystemExit):
        main(["convert", str(file), str(tmp_path / "log")])
    assert f"add --schema FILE; `python -m replay schema {file}`" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", str(tmp_path / "log"), "--schema", "x.yaml"])
    assert "SRC is needed" in capsys.readouterr().err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)
    (tmp_path / "mine.yaml").write_text("action: item\nreward: click\naction: p\n")
    with pytest.raises(SystemExit):
        main(["convert", str(file), str(tmp_path / "log"), "--schema", str(tmp_path / "mine.yaml")])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert "mine.yaml, line 3" in line
    assert "the key action is there twice" in line


def test_estimated_propensities_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_csv(tmp_path / "x.csv", ROWS)
    (tmp_path / "mine.yaml").write_text("action: item\nreward: click\nlogging: estimated\n")
    main(["convert", str(file), str(tmp_path / "log"), "--schema", str(tmp_path / "mine.yaml")])
    assert "propensities estimated" in capsys.readouterr().out
    main(["info", str(tmp_path / "log")])
    assert "The propensities are estimated" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    file = str(write_csv(tmp_path / "x.csv", ROWS))
    (tmp_path / "mine.yaml").write_text("action: item\nreward: click\npropensity: p\n")
    arguments = ["convert", file, str(tmp_path / "log"), "--schema", str(tmp_path / "mine.yaml")]
    code = f"from replay.__main__ import main\nmain(['schema', {file!r}])\nmain({arguments!r})"
    assert heavy_after(code) == []
