"""Data sets: from every kind of file, the cache and OpenML to the same table, and an error for everything else."""

import csv
import gzip
import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import IncompleteRead
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import sklearn.datasets
import torch

from nl_lightning.core.errors import InputError
from nl_lightning.environments.datasets import DATASETS, load
from nl_lightning.environments.tables import Description, Table
from tests.support.shared_data import shared_file

# From the description of the data that lie beside the project, independently of the package.
COUNTS = {
    "mnist": "0:6903 1:7877 2:6990 3:7141 4:6824 5:6313 6:6876 7:7293 8:6825 9:6958",
    "mushroom": "p:3916 e:4208",
    "shuttle": "1:45586 2:50 3:171 4:8903 5:3267 6:10 7:13",
    "magic": "h:6688 g:12332",
    "banknote": "0:762 1:610",
    "phoneme": "0:3818 1:1586",
}
COLUMNS = {"mnist": 784, "mushroom": 22, "shuttle": 9, "magic": 10, "banknote": 4, "phoneme": 5}

SMALL = {
    name: known._replace(counts=(3, 2) + (0,) * (len(known.counts) - 2), sha256="") for name, known in DATASETS.items()
}
"""The data sets, as if they had three rows of the first class and two of the second."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, known in SMALL.items():
        monkeypatch.setitem(DATASETS, name, known)  # type: ignore[misc]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no network."""
    monkeypatch.setenv("NL_LIGHTNING_DATA", str(tmp_path / "cache"))

    def offline(**_: Any) -> Any:
        raise URLError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", offline)
    return tmp_path / "cache"


def published(name: str, form: int = 0) -> pd.DataFrame:
    """Five rows as a publisher's file has them; ``form`` 1 is OpenML's."""
    g = np.random.default_rng(7)
    order = [0, 1, 0, 0, 1]
    if name == "mnist":
        pixels = g.integers(0, 256, (5, 784))
        if form == 0:
            return pd.DataFrame(
                {"split": "train", "label": order, "image": [bytes(row.astype(np.uint8)) for row in pixels]}
            )
        frame = pd.DataFrame(pixels, columns=[f"pixel{i}" for i in range(1, 785)])
        return frame.assign(**{"class": pd.Categorical([str(k) for k in order])})
    if name == "mushroom":
        letters = g.choice(list("abc?"), (5, 22))
        names = list(SMALL[name].features[0])
        frame = pd.DataFrame(letters, columns=names)
        if form == 1:
            frame = frame.mask(frame == "?").rename(columns=lambda column: column.replace("_", "-"))
            frame = frame.rename(columns={"bruises": "bruises%3F"}).astype("category")
        return frame.assign(**{"class": pd.Categorical(["pe"[k] for k in order])})
    names = {
        "shuttle": (["time", *(f"a{i}" for i in range(2, 10))], [f"A{i}" for i in range(1, 10)]),
        "magic": (list(MAGIC), [f"{column}:" for column in MAGIC]),
        "banknote": (["variance", "skewness", "curtosis", "entropy"], ["V1", "V2", "V3", "V4"]),
        "phoneme": (["Aa", "Ao", "Dcl", "Iy", "Sh"], ["V1", "V2", "V3", "V4", "V5"]),
    }[name][form]
    frame = pd.DataFrame(g.normal(size=(5, len(names))).round(3), columns=names)
    if name == "shuttle":
        frame = (100 * frame).astype(int)
        return frame.assign(**{"class": [k + 1 for k in order], "split": "train"})
    if name == "magic":
        return frame.assign(**{("class:" if form else "class"): ["hg"[k] for k in order]})
    return frame.assign(Class=[str(k + 1) for k in order]) if form else frame.assign(**{"class": order})


MAGIC = ("fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist")


def twin(name: str, frame: pd.DataFrame) -> tuple[list[list[Any]], list[int]]:
    """Features and labels of a published frame by plain loops: letters of mushroom, numbers of the others."""
    x, label = [], []
    for _, row in frame.iterrows():
        cells = {key.lower().rstrip(":"): value for key, value in row.items()}
        cells.pop("split", None)
        found = str(cells.pop("class", cells.pop("label", None) if "label" in cells else None))
        label.append({"p": 0, "e": 1, "h": 0, "g": 1}[found] if found.isalpha() else int(float(found)))
        if "image" in cells:
            x.append(list(cells["image"]))
        elif name == "mushroom":
            x.append(["?" if value != value else value for value in cells.values()])
        else:
            x.append([float(value) for value in cells.values()])
    lowest = min(label) if name in ("shuttle", "banknote", "phoneme") else 0
    return x, [k - lowest for k in label]


def decoded(table: Table) -> list[list[Any]]:
    if not table.categories:
        return table.x.tolist()
    return [[table.categories[j][code] for j, code in enumerate(row)] for row in table.x.tolist()]


def assert_same(one: Table, other: Table) -> None:
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.label, other.label)
    assert one.x.dtype == other.x.dtype
    assert one.categories == other.categories


# A CSV has no column of bytes.
FORMS = [(name, form, kind) for name in DATASETS for form in (0, 1) for kind in ("parquet", "csv")]
FORMS.remove(("mnist", 0, "csv"))


@pytest.mark.parametrize(("name", "form", "kind"), FORMS)
@pytest.mark.usefixtures("small")
def test_every_published_form_of_a_data_set(name: str, form: int, kind: str, tmp_path: Path) -> None:
    frame = published(name, form)
    # by content: the name of a file says nothing
    path = tmp_path / "file.data"
    if kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    table = load(name, str(path))
    x, label = twin(name, frame)
    assert decoded(table) == x
    assert table.label.tolist() == label == [0, 1, 0, 0, 1]
    assert table.x.dtype == {"mnist": torch.uint8, "mushroom": torch.int64}.get(name, torch.float64)
    assert all(list(names) == sorted(set(names)) for names in table.categories)


@pytest.mark.usefixtures("small")
def test_pixels_have_several_names(tmp_path: Path) -> None:
    frame = published("mnist", 1)
    pixels = [f"pixel{i}" for i in range(1, 785)]
    expected = frame[pixels].to_numpy().tolist()
    for names in ([f"pixel{i}" for i in range(784)], [f"{i}x{j}" for i in range(1, 29) for j in range(1, 29)]):
        renamed = frame.rename(columns=dict(zip(pixels, names, strict=True)))
        # a label before the pixels, and columns in another order
        renamed[["class", *reversed(names)]].rename(columns={"class": "label"}).to_csv(tmp_path / "m", index=False)
        assert load("mnist", str(tmp_path / "m")).x.tolist() == expected


@pytest.mark.parametrize("name", DATASETS)
def test_real_data(name: str) -> None:
    """All rows, with plain Python: values of the first and last rows, and the counts of classes."""
    path = shared_file(name)
    table = load(name, str(path))
    expected = [int(pair.split(":")[1]) for pair in COUNTS[name].split()]
    assert [count for _, count in sorted(Counter(table.label.tolist()).items())] == expected
    assert table.x.shape == (sum(expected), COLUMNS[name])
    rows = pq.read_table(path)
    for place in (0, 1, 777, rows.num_rows - 1):
        row = rows.slice(place, 1).to_pylist()[0]
        row.pop("split", None)
        found = str(row.pop("class", row.pop("label", None) if "label" in row else None))
        assert [pair.split(":")[0] for pair in COUNTS[name].split()][table.label[place]] == found
        cells = list(row["image"]) if name == "mnist" else list(row.values())
        assert decoded(table._replace(x=table.x[place : place + 1]))[0] == cells
    assert hashlib.sha256(path.read_bytes()).hexdigest() == DATASETS[name].sha256  # type: ignore[index]


@pytest.mark.parametrize("name", ["mushroom", "shuttle", "magic", "banknote", "phoneme"])
def test_real_data_as_csv(name: str, tmp_path: Path) -> None:
    path = shared_file(name)
    rows = pq.read_table(path).to_pylist()
    with (tmp_path / "file.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert_same(load(name, str(tmp_path / "file.csv")), load(name, str(path)))


def test_missing_numbers_are_0_and_missing_categories_a_category(tmp_path: Path) -> None:
    known = SMALL["banknote"]._replace(counts=(3, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "banknote", known)  # type: ignore[misc]
        (tmp_path / "file").write_text(
            "Variance,skewness,curtosis,entropy,class\n1,,3,-1.5,0\n?,2.5,nan,1,1\n4,5,6,7,0\n8, ,0,9,0\n"
        )
        numbers = load("banknote", str(tmp_path / "file"))
    assert numbers.x.tolist() == [[1, 0, 3, -1.5], [0, 2.5, 0, 1], [4, 5, 6, 7], [8, 0, 0, 9]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "mushroom", SMALL["mushroom"])  # type: ignore[misc]
        frame = published("mushroom").assign(odor=["n", "?", "NA", "", "a"])
        frame.to_csv(tmp_path / "file", index=False)
        table = load("mushroom", str(tmp_path / "file"))
        # a Parquet file has a missing value where a CSV has nothing
        frame.assign(odor=["n", "?", "NA", None, "a"]).to_parquet(tmp_path / "file")
        assert_same(load("mushroom", str(tmp_path / "file")), table)
    assert table.categories[4] == ("?", "NA", "a", "n")
    assert table.x[:, 4].tolist() == [3, 0, 1, 0, 2]


# ---- the cache ------------------------------------------------------------------------------------------------------


def answers(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Any]) -> list[dict[str, Any]]:
    """OpenML answers so; what it was asked."""
    asked: list[dict[str, Any]] = []

    def fetch_openml(**arguments: Any) -> Any:
        asked.append(arguments)
        return answer()

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
    return asked


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.usefixtures("small")
def test_download_into_the_cache(name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = published(name, 1)
    frame.to_parquet(tmp_path / "frame")
    asked = answers(monkeypatch, lambda: SimpleNamespace(frame=frame))
    table = load(name)
    assert_same(table, load(name, str(tmp_path / "frame")))
    ids = {"mnist": 554, "mushroom": 24, "shuttle": 40685, "magic": 1120, "banknote": 1462, "phoneme": 1489}
    assert [arguments["data_id"] for arguments in asked] == [ids[name]]
    assert asked[0]["as_frame"] is True
    # what scikit-learn kept is gone
    assert not Path(asked[0]["data_home"]).exists()
    assert {path.name for path in cache.iterdir()} == {f"{name}.parquet", f"{name}.sha256"}
    digest = hashlib.sha256((cache / f"{name}.parquet").read_bytes()).hexdigest()
    assert (cache / f"{name}.sha256").read_text() == f"{digest}  {name}.parquet\n"
    # the second time nobody is asked
    assert_same(load(name), table)
    assert_same(load(name, cache=str(cache)), table)
    assert len(asked) == 1


@pytest.mark.usefixtures("small")
def test_what_was_downloaded_is_checked_at_every_load(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, lambda: SimpleNamespace(frame=published("magic", 1)))
    table = load("magic")
    path = cache / "magic.parquet"
    other = published("magic")
    other["fDist"] += 1
    other.to_parquet(path)
    with pytest.raises(InputError, match="has not the SHA-256 that magic.sha256 beside it noted.*remove magic.sha256"):
        load("magic")
    # a file of the user's own
    (cache / "magic.sha256").unlink()
    assert not torch.equal(load("magic").x, table.x)
    path.unlink()
    (cache / "magic.sha256").write_text("")
    assert_same(load("magic"), table)
    (cache / "magic.sha256").write_text("")
    with pytest.raises(InputError, match="SHA-256"):
        load("magic")


@pytest.mark.usefixtures("small")
def test_where_a_file_is_looked_for(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(directory: Path, kind: str, shift: float) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        frame = published("banknote")
        frame["entropy"] += shift
        path = directory / f"banknote.{kind}"
        frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)

    before = published("banknote")["entropy"][0]

    def found(**where: Any) -> int:
        return round(float(load("banknote", **where).x[0, 3]) - before)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    put(tmp_path / "home" / "nl-lightning", "csv", 1)
    put(cache, "csv", 2)
    assert found() == 2
    put(cache, "parquet", 3)
    assert found() == 3
    put(tmp_path / "other", "parquet", 4)
    assert found(cache=str(tmp_path / "other")) == 4
    assert found(file=str(tmp_path / "other" / "banknote.parquet"), cache=str(cache)) == 4
    monkeypatch.delenv("NL_LIGHTNING_DATA")
    assert found() == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / ".cache" / "nl-lightning", "csv", 5)
    assert found() == 5
    assert found(file="~/other/banknote.parquet") == 4


@pytest.mark.usefixtures("small")
def test_who_comes_while_another_one_downloads_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock belongs to an opened directory, hence two threads exclude each other as two processes do."""

    def slowly() -> Any:
        time.sleep(0.3)
        return SimpleNamespace(frame=published("phoneme", 1))

    asked = answers(monkeypatch, slowly)
    with ThreadPoolExecutor(3) as pool:
        tables = list(pool.map(load, ["phoneme"] * 3))
    assert len(asked) == 1
    assert_same(tables[0], tables[1])
    assert_same(tables[0], tables[2])


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (URLError("no route"), "cannot be downloaded (<urlopen error no route>)"),
        (HTTPError("http://x", 503, "busy", None, None), "HTTP Error 503: busy"),  # type: ignore[arg-type]
        (ConnectionResetError("reset by peer"), "reset by peer"),
        (TimeoutError("too slow"), "too slow"),
        (IncompleteRead(b""), "IncompleteRead"),
        (ValueError("md5 checksum of local file does not match"), "came damaged (md5 checksum of local file"),
    ],
)
@pytest.mark.parametrize("name", DATASETS)
def test_absent_and_offline(
    name: str, error: Exception, text: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise error

    answers(monkeypatch, fail)
    with pytest.raises(InputError) as raised:
        load(name)
    said = str(raised.value)
    known: Description = DATASETS[name]  # type: ignore[index]
    assert text in said
    assert f"The data set {name} is not there: {cache} has neither {name}.parquet nor {name}.csv" in said
    assert f"OpenML's data set {known.openml}" in said
    assert f"with {sum(known.counts)} rows and the columns class ({known.classes[0][0]}, " in said
    assert known.features[0][0] in said
    assert "NL_LIGHTNING_DATA" in said
    assert "setting file" in said
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_no_missing_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise OSError(28, "No space left on device")

    answers(monkeypatch, fail)
    with pytest.raises(OSError, match="No space left") as raised:
        load("magic")
    assert not isinstance(raised.value, InputError)


def test_a_cache_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NL_LIGHTNING_DATA", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match="below cannot be made to keep data sets in: Not a directory.*NL_LIGHTNING_D"):
        load("magic")


def drop(*names: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.drop(columns=list(names))


def put(row: int, name: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame[name] = [value if place == row else cell for place, cell in enumerate(frame[name])]
        return frame

    return change


ERRORS: list[tuple[str, int, Callable[[pd.DataFrame], pd.DataFrame], str]] = [
    (
        "magic",
        0,
        drop("fDist", "fSize"),
        r"there is no column fsize, fdist among flength, .*has the columns class \(h, g",
    ),
    ("phoneme", 1, drop("V3"), "there is no column v3 among v1, v2, v4, v5, class.*aa, ao, dcl, iy, sh or v1, v2"),
    ("mnist", 1, drop("pixel784"), r"no column pixel784 among pixel1, pixel2, pixel3, \.\.\., class \(784\)"),
    ("mnist", 0, drop("image"), "there is no column image among split, label"),
    (
        "banknote",
        0,
        drop("class"),
        r"no column of classes \(class or label\) among variance, .*the first line of a CSV",
    ),
    ("banknote", 0, lambda f: f.assign(Class=1), "there are two columns class. Leave one of them out"),
    ("banknote", 0, put(3, "class", 7), "class has the values 0, 1, 7, expected 0, 1 or 1, 2"),
    ("magic", 0, put(3, "class", "x"), "class has the values g, h, x, expected h, g"),
    ("magic", 0, put(3, "class", None), "row 4 has no class"),
    ("banknote", 0, put(1, "class", None), "row 2 has no class"),
    ("magic", 0, put(1, "fSize", "many"), "row 2 has fsize = 'many', expected a number"),
    ("magic", 0, put(2, "fSize", np.inf), "row 3 has an infinite fsize"),
    ("mnist", 1, put(2, "pixel7", 256), "pixel7 must be a pixel, a whole number from 0 to 255"),
    ("mnist", 1, put(2, "pixel7", -1), "pixel7 must be a pixel"),
    ("mnist", 1, put(2, "pixel7", 0.5), "pixel7 must be a pixel"),
    ("magic", 0, lambda f: f[:4], "has 4 rows, expected the 5 of UCI MAGIC Gamma Telescope"),
    ("magic", 0, lambda f: pd.concat([f, f]), "has 10 rows, expected the 5"),
    ("magic", 0, put(0, "class", "g"), "the classes h, g of UCI MAGIC .* have 3, 2 rows, got 2, 3. It is another"),
]


@pytest.mark.parametrize("kind", ["parquet", "csv", "openml"])
@pytest.mark.parametrize(("name", "form", "change", "text"), ERRORS)
@pytest.mark.usefixtures("small")
def test_what_is_wrong_with_a_table(
    name: str,
    form: int,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    text: str,
    kind: str,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame, path = change(published(name, form)), tmp_path / "broken"
    if kind == "openml":
        answers(monkeypatch, lambda: SimpleNamespace(frame=frame))
        with pytest.raises(InputError, match=f"(?s)OpenML's data set {SMALL[name].openml}.*{text}"):
            load(name)
        assert list(cache.iterdir()) == []
        return
    if kind == "parquet":
        # a column of mixed cells is text
        mixed = [column for column in frame if len({type(cell) for cell in frame[column] if cell is not None}) > 1]
        frame.astype(dict.fromkeys(mixed, str)).to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    with pytest.raises(InputError, match=f"(?s){re.escape(str(path))}.*{text}"):
        load(name, str(path))


@pytest.mark.parametrize("image", [b"\0" * 783, "text", None])
@pytest.mark.usefixtures("small")
def test_images_of_another_size(image: object, tmp_path: Path) -> None:
    frame = published("mnist")
    images = list(frame["image"])
    images[3] = image
    if image == "text":
        images = ["text"] * 5
    frame.assign(image=images).to_parquet(tmp_path / "broken")
    with pytest.raises(InputError, match=f"image of row {1 if image == 'text' else 4} must be 784 bytes, 28 x 28"):
        load("mnist", str(tmp_path / "broken"))


@pytest.mark.parametrize("keep", [0.5, 0.99])
@pytest.mark.usefixtures("small")
def test_a_file_that_is_cut_off(keep: float, tmp_path: Path) -> None:
    path = tmp_path / "file"
    published("phoneme").to_parquet(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(InputError, match="cannot be read as Parquet: .*damaged or of another kind. Expected Phoneme"):
        load("phoneme", str(path))


@pytest.mark.parametrize(
    "content",
    [b"", gzip.compress(b"class\n1\n", mtime=0), b"class,Aa\n1,2\n1,2,3,4\n", b"class\n\xff\xfe\n"],
    ids=["empty", "compressed", "ragged", "not text"],
)
def test_what_is_neither_parquet_nor_csv(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read as CSV \(it does not begin like Parquet\): "):
        load("phoneme", str(tmp_path / "file.csv"))


def test_there_is_no_such_file(tmp_path: Path) -> None:
    for path in (tmp_path / "nosuch", tmp_path):
        with pytest.raises(InputError, match=f"There is no file {path}. Expected Phoneme .*aa, ao, dcl, iy, sh"):
            load("phoneme", str(path))
    with pytest.raises(InputError, match="dataset must be one of mnist, mushroom, .*; got 'nosuch'"):
        load("nosuch")


def test_a_file_whose_sha256_is_known_needs_no_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    published("phoneme").to_parquet(path)
    with pytest.raises(InputError, match="has 5 rows, expected the 5404"):
        load("phoneme", str(path))
    known = DATASETS["phoneme"]._replace(sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setitem(DATASETS, "phoneme", known)
    assert len(load("phoneme", str(path)).label) == 5
