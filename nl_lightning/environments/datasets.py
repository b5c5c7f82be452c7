"""The paper's classification data sets: in a file that the user has, in the cache, or in OpenML.

The cache is the directory that the environment variable NL_LIGHTNING_DATA names, or else ~/.cache/nl-lightning. What is
downloaded is stored there as ``<name>.parquet``, with its SHA-256 beside it. A file of the user, Parquet or CSV, may be
put there under the same name, or be named itself.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast
from urllib.error import URLError

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from lightning.pytorch.utilities import rank_zero_info

from nl_lightning.core.credentials import check_no_credentials
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside
from nl_lightning.environments.tables import SIDE, Description, Table, check_counts, frame_of, table_of

__all__ = ["DATASETS", "DATA_VARIABLE", "Dataset", "description", "load"]


Dataset = Literal["mnist", "mushroom", "shuttle", "magic", "banknote", "phoneme"]

DATA_VARIABLE = "NL_LIGHTNING_DATA"
"""The environment variable that names the directory of data sets."""


def _numbered(name: str, first: int, last: int) -> tuple[str, ...]:
    return tuple(f"{name}{number}" for number in range(first, last + 1))


DATASETS: dict[Dataset, Description] = {
    "mnist": Description(
        title="MNIST",
        openml=554,
        kind="images",
        features=(
            ("image",),
            _numbered("pixel", 1, SIDE * SIDE),
            _numbered("pixel", 0, SIDE * SIDE - 1),
            tuple(f"{row}x{column}" for row in range(1, SIDE + 1) for column in range(1, SIDE + 1)),
        ),
        classes=(_numbered("", 0, 9),),
        counts=(6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958),
        sha256="dfeb2ddf5acd017053adb1fe85dc4ff46edbf29c2ae0ebed04f01a308f2b5997",
    ),
    "mushroom": Description(
        title="UCI Mushroom",
        openml=24,
        kind="categories",
        features=(
            (
                "cap_shape",
                "cap_surface",
                "cap_color",
                "bruises",
                "odor",
                "gill_attachment",
                "gill_spacing",
                "gill_size",
                "gill_color",
                "stalk_shape",
                "stalk_root",
                "stalk_surface_above_ring",
                "stalk_surface_below_ring",
                "stalk_color_above_ring",
                "stalk_color_below_ring",
                "veil_type",
                "veil_color",
                "ring_number",
                "ring_type",
                "spore_print_color",
                "population",
                "habitat",
            ),
        ),
        # The paper's labels: 1 for edible, 0 for poisonous.
        classes=(("p", "e"),),
        counts=(3916, 4208),
        sha256="770dcf1184aaa67917a821d52f05139d346939c8bc513839c9e0b90916c22e6f",
    ),
    "shuttle": Description(
        title="UCI Statlog (Shuttle)",
        openml=40685,
        kind="numbers",
        features=(("time", *_numbered("a", 2, 9)), _numbered("a", 1, 9)),
        classes=(_numbered("", 1, 7),),
        counts=(45586, 50, 171, 8903, 3267, 10, 13),
        sha256="0111b188296c6a76714f3675d301ec2205c8902794dac94479153030956709db",
    ),
    "magic": Description(
        title="UCI MAGIC Gamma Telescope",
        openml=1120,
        kind="numbers",
        features=(
            (
                *("flength", "fwidth", "fsize", "fconc", "fconc1"),
                *("fasym", "fm3long", "fm3trans", "falpha", "fdist"),
            ),
        ),
        classes=(("h", "g"),),
        counts=(6688, 12332),
        sha256="3449219529d6132a94de741ef64da881424b1703ec2e19d86f9e8b2c1c35e324",
    ),
    "banknote": Description(
        title="UCI Banknote Authentication",
        openml=1462,
        kind="numbers",
        features=(("variance", "skewness", "curtosis", "entropy"), _numbered("v", 1, 4)),
        classes=(("0", "1"), ("1", "2")),
        counts=(762, 610),
        sha256="2c9b211999f0aa523f6b0ade6092c75adf5e43d401b351beb0fecc7ebf01545d",
    ),
    "phoneme": Description(
        title="Phoneme (ELENA)",
        openml=1489,
        kind="numbers",
        features=(("aa", "ao", "dcl", "iy", "sh"), _numbered("v", 1, 5)),
        classes=(("0", "1"), ("1", "2")),
        counts=(3818, 1586),
        sha256="11e0a2c352b8d8331b7b3928f866c75cc5a67c5097a5c1ec4917835041785bf1",
    ),
}


def description(name: str) -> Description:
    """What is known of a data set."""
    if not isinstance(name, str) or name not in DATASETS:
        raise InputError(f"dataset must be one of {', '.join(DATASETS)}; got {name!r}.")
    return DATASETS[name]


def load(name: str, file: str | None = None, cache: str | None = None) -> Table:
    """A data set: of the file that is named, or else of the cache, into which it is downloaded if need be."""
    known = description(name)
    check_no_credentials({"file": file, "cache": cache, DATA_VARIABLE: os.environ.get(DATA_VARIABLE)}, "The data set")
    if file is not None:
        path = Path(file).expanduser()
        if not path.is_file():
            raise InputError(
                f"There is no file {path}. Expected {known.title} as Parquet or CSV, with the columns {known.columns}."
            )
        return _table(path, known)
    directory = Path(cache or os.environ.get(DATA_VARIABLE) or _user_cache()).expanduser()
    found = _cached(directory, name)
    if found is None:
        # Processes of one run ask at once: the first one downloads, the others wait and find it.
        with _alone(directory):
            found = _cached(directory, name) or _download(name, known, directory)
    _check_unchanged(found)
    return _table(found, known)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nl-lightning"


def _cached(directory: Path, name: str) -> Path | None:
    files = (directory / f"{name}.parquet", directory / f"{name}.csv")
    return next((file for file in files if file.is_file()), None)


def _table(path: Path, known: Description) -> Table:
    content = path.read_bytes()
    table = table_of(_frame(path, content, known), known, str(path))
    if hashlib.sha256(content).hexdigest() != known.sha256:
        check_counts(table, known, str(path))
    return table


def _frame(path: Path, content: bytes, known: Description) -> pd.DataFrame:
    """The table in a file, which its first bytes tell to be Parquet or not."""
    parquet = content[:4] == b"PAR1"
    # Categories are text even where they look like numbers or like a missing one.
    as_text = {"dtype": str, "keep_default_na": False} if known.kind == "categories" else {"na_values": "?"}
    try:
        if parquet:
            return cast(pd.DataFrame, pq.read_table(pa.BufferReader(content)).to_pandas())
        return pd.read_csv(path, encoding="utf-8-sig", compression=None, **as_text)  # type: ignore[call-overload]
    except (OSError, ValueError, pa.ArrowException) as error:
        kind = "Parquet" if parquet else "CSV (it does not begin like Parquet)"
        raise InputError(
            f"{path} cannot be read as {kind}: {str(error).strip()}. It is damaged or of another kind. "
            f"Expected {known.title} as Parquet or CSV."
        ) from error


def _beside(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _check_unchanged(path: Path) -> None:
    """What was downloaded is still what was checked then."""
    note = _beside(path)
    if path.suffix != ".parquet" or not note.is_file():
        return
    noted, found = note.read_text().split()[:1], hashlib.sha256(path.read_bytes()).hexdigest()
    if noted != [found]:
        raise InputError(
            f"{path} has not the SHA-256 that {note.name} beside it noted when it was downloaded: it is damaged or was "
            f"replaced. Remove both, and it is downloaded anew; for a file of your own, remove {note.name}."
        )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Have the cache for this process, made if need be; wait for another one that has it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{directory} cannot be made to keep data sets in: {error.strerror}. "
            f"Name another directory in the environment variable {DATA_VARIABLE}."
        ) from error
    opened = os.open(directory, os.O_RDONLY)
    try:
        flock(opened, LOCK_EX)
        yield
    finally:
        os.close(opened)


def _download(name: str, known: Description, directory: Path) -> Path:
    """Fetch a data set from OpenML into the cache, with what it must have checked."""
    # A quarter of a second that only a download needs.
    from sklearn.datasets import fetch_openml

    origin = f"OpenML's data set {known.openml}"
    rank_zero_info(f"Downloading {known.title} ({origin}) into {directory}.")
    try:
        # scikit-learn keeps what it downloads, in a format that takes ten times the room: here it need not.
        with TemporaryDirectory() as own:
            # It compares the MD5 of what comes with that of OpenML.
            fetched = fetch_openml(data_id=known.openml, data_home=own, as_frame=True, parser="auto")
    except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
        raise InputError(_absent(name, known, directory, f"{origin} cannot be downloaded ({error})")) from error
    except ValueError as error:
        raise InputError(_absent(name, known, directory, f"{origin} came damaged ({error})")) from error
    table = table_of(fetched.frame, known, origin)
    check_counts(table, known, origin)
    path = directory / f"{name}.parquet"
    stored = pa.Table.from_pandas(frame_of(table, known), preserve_index=False)
    write_beside(path, lambda beside: pq.write_table(stored, beside, compression="zstd"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    # As sha256sum writes it, which can check it.
    write_beside(_beside(path), lambda beside: beside.write_text(f"{digest}  {path.name}\n"))
    return path


def _absent(name: str, known: Description, directory: Path, reason: str) -> str:
    return (
        f"The data set {name} is not there: {directory} has neither {name}.parquet nor {name}.csv, and {reason}. "
        f"Go online, or put {known.title} there as one of these files, with {known.rows} rows and the columns "
        f"{known.columns}; a file elsewhere is named by the environment's setting file, another directory by the "
        f"environment variable {DATA_VARIABLE}."
    )
