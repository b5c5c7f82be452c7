"""Checkpoint files: what is written can be read, and nothing else."""

from collections import OrderedDict
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from nl_lightning.core.checkpoint import read_checkpoint, restoring, write_checkpoint
from nl_lightning.core.errors import InputError
from nl_lightning.core.files import write_beside


class Colour(IntEnum):
    RED = 1


class Pair(NamedTuple):
    one: int
    two: int


def test_what_is_written_comes_back_as_plain_values(tmp_path: Path) -> None:
    tensor = torch.rand(3, 2, dtype=torch.float64)
    stored = {
        "tensor": tensor,
        "parameter": torch.nn.Parameter(tensor),
        "numbers": (np.float64(0.5), np.int32(3), np.bool_(True), Colour.RED, True),
        "pair": Pair(1, 2),
        "path": Path("a/b"),
        "ordered": OrderedDict(a=1),
        "nothing": None,
        5: {"set": {1, 2}, "dtype": torch.float32, "size": tensor.shape},
    }
    write_checkpoint(stored, tmp_path / "new" / "x.ckpt")
    again = read_checkpoint(tmp_path / "new" / "x.ckpt")
    assert torch.equal(again.pop("tensor"), tensor)
    assert torch.equal(again.pop("parameter"), tensor)
    assert again == {
        "numbers": (0.5, 3, True, 1, True),
        "pair": (1, 2),
        "path": "a/b",
        "ordered": {"a": 1},
        "nothing": None,
        5: {"set": {1, 2}, "dtype": torch.float32, "size": torch.Size([3, 2])},
    }
    assert [type(number) for number in again["numbers"]] == [float, int, bool, int, bool]


def test_a_module_state_keeps_its_versions(tmp_path: Path) -> None:
    class Versioned(torch.nn.Module):
        _version = 3

        def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
            self.seen = metadata.get("version")

    write_checkpoint({"state_dict": Versioned().state_dict()}, tmp_path / "x.ckpt")
    loaded = Versioned()
    loaded.load_state_dict(read_checkpoint(tmp_path / "x.ckpt")["state_dict"])
    assert loaded.seen == 3


@pytest.mark.parametrize("value", [object(), np.zeros(3), lambda: 1, [{"deep": object()}]])
def test_what_could_not_be_read_is_not_written(value: Any, tmp_path: Path) -> None:
    (tmp_path / "x.ckpt").write_text("old")
    with pytest.raises(InputError, match=r"checkpoint\.mine.* is a .*, which a checkpoint cannot hold"):
        write_checkpoint({"mine": value}, tmp_path / "x.ckpt")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_state_that_does_not_fit_names_the_file() -> None:
    text = r"^x\.ckpt does not hold the state of this .* \(KeyError: 'absent'\)"
    with pytest.raises(InputError, match=text), restoring("this", "x.ckpt"):
        raise KeyError("absent")
    with pytest.raises(InputError, match=r"^x\.ckpt: wrong$"), restoring("this", "x.ckpt"):
        raise InputError("wrong")
    with pytest.raises(InputError, match=r"^of x\.ckpt$"), restoring("this", "x.ckpt"):
        raise InputError("of x.ckpt")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyError("bug"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_written_leaves_nothing_behind(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def write(beside: Path) -> None:
        beside.write_text("ne")
        raise error

    expected = InputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as raised:
        write_beside(path, write)
    if expected is InputError:
        assert str(raised.value).startswith(f"{path} cannot be written: No space left on device.")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
