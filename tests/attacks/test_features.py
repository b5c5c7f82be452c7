"""Attacks on the features of a log that a checkpoint holds: cut, exchanged, of other shapes."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from replay import Log, fit_features
from replay.__main__ import main
from replay.protocol.fitting import features_from_state
from tests.support.attacked_logs import WRONG, intact_checkpoint, intact_log
from tests.support.attacks import Attack, judge, table

pytestmark = pytest.mark.attack


def features() -> dict[str, Any]:
    return fit_features(Log(intact_log())).state_dict()


def restored(state: Any, _: Path) -> Any:
    found = features_from_state(state)
    found.check(Log(intact_log()))
    return found.state_dict()


def as_they_were(state: Any, _: Path) -> bool:
    expected = features()
    tables = all(torch.equal(state[name], expected[name]) for name in ("user", "item"))
    return tables and all(
        state[name] == expected[name] for name in ("kind", "categories", "positions", "affinity_high")
    )


def evaluated(change: Callable[[dict[str, Any]], Any], directory: Path) -> None:
    """Evaluate the agent of a checkpoint whose features were changed."""
    stored = torch.load(intact_checkpoint(), weights_only=False)
    environment = next(
        part["environment"] for part in stored.values() if isinstance(part, dict) and "environment" in part
    )
    environment["features"] = change(environment["features"])
    torch.save(stored, directory / "cut.ckpt")
    main(["evaluate", f"--log={intact_log()}", f"--checkpoint={directory / 'cut.ckpt'}"])


def cut_features() -> Iterator[Attack]:
    whole = features()
    for name in whole:
        rest = {key: value for key, value in whole.items() if key != name}
        yield Attack("features", f"without {name}", partial(restored, rest), ("features", name))
        for kind, value in WRONG.items():
            says = ("features", name)
            right = as_they_were if name == "items_digest" else None
            yield Attack("features", f"{name} is {kind}", partial(restored, whole | {name: value}), says, right)
    for name in ("user", "item"):
        full = whole[name]
        for kind, value in {
            "a row too few": full[:-1],
            "no row": full[:0],
            "a column too few": full[:, :-1],
            "flat": full.flatten(),
            "in float32": full.float(),
            "whole": full.long(),
            "NaN": full * float("nan"),
            "sparse": full.to_sparse(),
            "a scalar": full.sum(),
        }.items():
            says = (name,) if (name, kind) != ("item", "a row too few") else ("items",)
            yield Attack("features", f"{name}: {kind}", partial(restored, whole | {name: value}), says)
    fuller = whole["user"].clone()
    fuller[-1] = 1
    categories = whole["categories"]
    for name, state in {
        "unknown users are not neutral": whole | {"user": fuller},
        "three lists of categories": whole | {"categories": categories[:3]},
        "a category twice": whole | {"categories": [[names[0]] * len(names) for names in categories]},
        "categories that are numbers": whole | {"categories": [[1] * len(names) for names in categories]},
        "one category more": whole | {"categories": [[*categories[0], "new"], *categories[1:]]},
        "a key more": whole | {"more": 1},
        "of another kind": whole | {"kind": "nosuch"},
        "a list": [whole],
        "text": "features",
        "nothing": {},
    }.items():
        yield Attack("features", name, partial(restored, state), ("features",))
    for name, change in {
        "without user": lambda state: {key: value for key, value in state.items() if key != "user"},
        "a table cut": lambda state: state | {"user": state["user"][:-1]},
        "a list": lambda state: [state],
    }.items():
        yield Attack("features: evaluate", name, partial(evaluated, change), ("features",))


@table(cut_features())
def test_refused_or_right(attack: Attack, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    judge(attack, tmp_path, record_property)
