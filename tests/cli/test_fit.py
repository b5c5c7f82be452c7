"""The command line, as a user has it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError

import pyarrow.parquet as pq
import pytest
import sklearn.datasets
import torch
import yaml

from nl_lightning import AGENTS
from nl_lightning.cli.main import main
from nl_lightning.environments.datasets import DATASETS
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.directory import RunDirectory
from nl_lightning.runs.wandb import wandb_is_offline
from replay.simulation.simulate import make_log
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.cli import CONFIGS, H1, SMALL, fails
from tests.support.shared_data import shared_file

# sweep.yaml is W&B's, not fit's
RUNS = sorted(path.name for path in CONFIGS.glob("*.yaml") if path.name != "sweep.yaml")
CSV = f"--config={CONFIGS / 'loggers' / 'csv.yaml'}"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("config", RUNS)
def test_every_shipped_config_runs(config: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if Path(config).stem in DATASETS:
        shared_file(Path(config).stem)
    if config == "log.yaml":
        # where the config says that a log of one's own is
        make_log(directory / "data" / "mine", SimulatedWorld(items=5), rows=2000)
    main(["fit", f"--config={CONFIGS / config}", *SMALL, "--run.id=x"])
    (run,) = directory.glob("runs/*/x")
    assert {path.name for path in run.iterdir()} == {
        "config.yaml",
        "rounds.parquet",
        "summary.json",
        "curve.png",
        "checkpoints",
    }
    summary = json.loads((run / "summary.json").read_text())
    rows = pq.read_table(run / "rounds.parquet")
    assert summary["finished"]
    assert rows.num_rows == 40 * len(summary["replicas"]) - sum(20 for r in summary["replicas"] if r["diverged_at"])
    column, name = (
        ("cumulative_regret", "regret") if summary["measure"] == "regret" else ("cumulative_reward", "clicks")
    )
    last = dict(zip(rows["replica"].to_pylist(), rows[column].to_pylist(), strict=True))
    assert [last[r["replica"]] for r in summary["replicas"]] == [r[name] for r in summary["replicas"]]
    assert summary["agent"] in capsys.readouterr().out


def test_a_data_set_that_is_absent(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offline, the error says which file to put where, and no run is left behind."""

    def offline(**_: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", offline)
    monkeypatch.setenv("NL_LIGHTNING_DATA", str(directory / "data"))
    said = fails(["fit", f"--config={CONFIGS / 'phoneme.yaml'}", *SMALL], capsys)
    assert f"The data set phoneme is not there: {directory / 'data'} has neither phoneme.parquet nor" in said
    assert "Traceback" not in said
    (directory / "mine").write_text("class,Aa\n1,2\n")
    said = fails(["fit", f"--config={CONFIGS / 'phoneme.yaml'}", *SMALL, "--data.environment.file=mine"], capsys)
    assert "mine: there is no column ao, dcl, iy, sh among class, aa" in said
    said = fails(["fit", f"--config={CONFIGS / 'phoneme.yaml'}", "--data.environment.dataset=iris"], capsys)
    assert "iris" in said
    assert not list(directory.glob("runs/*"))


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_runs_by_its_name_in_the_paper(name: str, directory: Path) -> None:
    main(["fit", H1, "--model", name, *SMALL, "--run.id=x", "--model.design=full", "--model.replicas=2"])
    assert json.loads(Path("runs/h1/x/summary.json").read_text())["agent"] == name


def test_a_runs_own_config_repeats_it(directory: Path) -> None:
    main(["fit", H1, *SMALL, "--run.id=one", "--model.nu=0.3", "--model=NeuralLogTS1"])
    main(["fit", "--config=runs/h1/one/config.yaml", "--run.id=two"])
    assert pq.read_table("runs/h1/one/rounds.parquet").equals(pq.read_table("runs/h1/two/rounds.parquet"))
    assert yaml.safe_load(Path("runs/h1/one/config.yaml").read_text())["model"]["init_args"]["nu"] == 0.3


def test_print_config_shows_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["fit", H1, "--model.nu=[1,2]", "--print_config"])
    assert stop.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["model"]["init_args"]["nu"] == [1, 2]
    assert config["data"]["environment"]["init_args"]["function"] == "h1"


def test_lists_and_grids_from_the_command_line(directory: Path) -> None:
    main(["fit", H1, *SMALL, "--run.id=list", "--model.nu=[0.1, 1, 10]", "--model.replicas=1"])
    summary = json.loads(Path("runs/h1/list/summary.json").read_text())
    assert [r["nu"] for r in summary["replicas"]] == [0.1, 1, 10]
    main(
        [
            "fit",
            H1,
            *SMALL,
            "--run.id=grid",
            "--model.optimizer=gd",
            "--model.grid={nu: [0.1, 1], lam: [1, 300]}",
            "--model.replicas=2",
        ]
    )
    summary = json.loads(Path("runs/h1/grid/summary.json").read_text())
    assert [(r["nu"], r["lam"], r["seed"]) for r in summary["replicas"]][:5] == [
        (0.1, 1, 0),
        (0.1, 1, 1),
        (0.1, 300, 0),
        (0.1, 300, 1),
        (1, 1, 0),
    ]
    assert [r["diverged_at"] for r in summary["replicas"]] == [None, None, 20, 20] * 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--model=NoSuchAgent"], "NoSuchAgent"),
        (["--model=NoSuchAgent"], "The agents: NCBFUCB, LogisticUCB1, AdaOFUECOLog"),
        (["--model.nosuch=3"], "there is no option --model.nosuch of NeuralLogUCB2"),
        (["--data.environment.nosuch=3"], "nosuch"),
        (["--nosuch=3"], "nosuch"),
        (["--model.lam=-1"], "lam must be a finite number, greater than 0"),
        (["--model.nu=-1"], "nu must be a finite number, at least 0"),
        (["--model.kappa=3"], "kappa must be a finite number, at least 4"),
        (["--model.nu=[1,2,3]"], "nu has 3 entries for 10 replicas"),
        (["--data.environment.arms=0"], "arms must be a whole number of at least 1"),
        (["--data.environment.seed=[1,2]"], "seed has 2 entries for 10 replicas"),
        (["--data.rounds=0"], "rounds must be"),
        (["--model.optimizer=gd", "--model.lam=100", "--model.lr=0.01"], "TrainNN diverged in replica 0"),
        (["--trainer.max_epochs=3"], "rounds bound the run"),
        (["--trainer.limit_train_batches=1"], "rounds bound the run"),
        (["--trainer.strategy=ddp"], "devices share out replicas"),
        (["--trainer.precision=bf16-mixed"], "use 32-true or 64-true"),
        (["--trainer.gradient_clip_val=1"], "plain full-batch gradient steps"),
        (["--trainer.accumulate_grad_batches=2"], "plain full-batch gradient steps"),
        (["--trainer.overfit_batches=1"], "each comes once"),
        (["--run.name=a/b"], "run.name must be the name of a directory, got 'a/b'"),
        (["--run.id=.."], "run.id must be the name of a directory"),
        (["--run.dir="], "run.dir must be the name of a directory"),
        (["--run.checkpoint_every=0"], "run.checkpoint_every must be a whole number of at least 1"),
        (["--data.environment.seed=-1"], "seed must be a whole number of at least 0, got -1"),
        (["--data.environment.noise_seed=[0,-5]"], "noise_seed must be a whole number of at least 0, got -5"),
        (["--model.nu=abc"], "abc"),
        (["--model.S=1e200"], "The radius overflows"),
        (["--model.init_args.dim=5"], "model.dim is 5, but the environment's arms have 20 features"),
        ([CSV, "--model.optimizer=gd", "--model.lam=100"], "TrainNN diverged in replica 0"),
        ([CSV, "--data.environment.seed=[1,2,3]"], "seed has 3 entries for 10 replicas"),
        (["--run.dir=file"], "cannot be written: Not a directory"),
        (["--run.dir=/proc/nosuch"], "cannot be written"),
        (["--ckpt_path=some.ckpt"], "--resume DIRECTORY"),
        (["--config=nosuch.yaml"], "nosuch.yaml"),
    ],
)
def test_bad_input_is_a_clear_error_and_leaves_no_run(
    arguments: list[str], text: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert text in fails(["fit", H1, *SMALL, *arguments], capsys)
    assert {path.name for path in directory.iterdir()} <= {"file", "runs"}
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--trainer.max_steps=1"],
        ["--trainer.precision=64-true"],
        ["--trainer.enable_checkpointing=false"],
        ["--trainer.deterministic=true"],
        ["--trainer.profiler=simple"],
        ["--trainer.detect_anomaly=true"],
        ["--trainer.max_time=00:01:00:00"],
        ["--trainer.barebones=true", "--trainer.enable_progress_bar=null"],
    ],
)
def test_trainer_flags_that_users_know(arguments: list[str], directory: Path) -> None:
    main(["fit", H1, *SMALL, *arguments, "--run.id=x"])
    summary = json.loads(Path("runs/h1/x/summary.json").read_text())
    stopped = arguments[0].startswith("--trainer.max_steps")
    assert (summary["rounds"], summary["finished"]) == ((20, False) if stopped else (40, True))
    kept = arguments[0] not in ("--trainer.enable_checkpointing=false", "--trainer.barebones=true")
    assert Path("runs/h1/x/checkpoints/last.ckpt").exists() == kept


def test_fast_dev_run_writes_nothing(directory: Path) -> None:
    main(["fit", H1, *SMALL, "--trainer.fast_dev_run=true"])
    assert not Path("runs").exists()


def test_csv_logger(directory: Path) -> None:
    main(["fit", H1, CSV, *SMALL, "--run.id=x"])
    import pandas as pd

    metrics = pd.read_csv("runs/h1/x/csv/version_0/metrics.csv")
    assert metrics["round"].dropna().tolist() == [20, 40]
    best = json.loads(Path("runs/h1/x/summary.json").read_text())["over_replicas"][0]
    last = metrics.dropna(subset=["regret/mean"]).iloc[-1]
    assert last["regret/mean"] == pytest.approx(best["regret"])
    assert last["regret/low"] == pytest.approx(best["regret_low"])


def test_wandb_offline(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # W&B's process keeps the directory that it was started in, and so the test before it
    pytest.importorskip("wandb").teardown()
    main(["fit", H1, f"--config={CONFIGS / 'loggers' / 'wandb.yaml'}", *SMALL, "--run.id=x"])
    (run,) = Path("runs/h1/x/wandb").glob("offline-run-*-h1-x")
    out = capsys.readouterr().out.replace("\n", "")
    assert f"upload it with: wandb sync {run}" in out
    assert list((run / "files" / "media" / "images").glob("curve*.png"))
    (table,) = (run / "files" / "media" / "table").glob("*.table.json")
    keys = {row[1] for row in json.loads(table.read_text())["data"]}
    assert keys == {"NeuralLog-UCB-2 low", "NeuralLog-UCB-2 mean", "NeuralLog-UCB-2 high"}
    # W&B's own process writes the record, on a busy machine a moment after `finish` has returned.
    record, words = run / "run-h1-x.wandb", (b"regret/mean", b"regret/low", b"final/regret", b"environment")
    for _ in range(60):
        if record.exists() and all(word in record.read_bytes() for word in words):
            break
        time.sleep(1)
    for word in (*words, b"update_every"):
        assert word in record.read_bytes()


def test_without_a_keywandb_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setattr(wandb, "login", lambda **_: False)
    assert wandb_is_offline()
    monkeypatch.setattr(wandb, "login", lambda **_: True)
    assert not wandb_is_offline()


def test_finished_runs_are_left_alone(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", H1, *SMALL, "--run.id=x"])
    before = Path("runs/h1/x/rounds.parquet").stat().st_mtime_ns
    capsys.readouterr()
    main(["fit", "--resume", "runs/h1/x"])
    assert "This run is finished" in capsys.readouterr().out
    assert Path("runs/h1/x/rounds.parquet").stat().st_mtime_ns == before


def test_a_directory_with_another_run_is_not_touched(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", H1, *SMALL, "--run.id=x"])
    assert "differ in model.init_args.nu" in fails(["fit", H1, *SMALL, "--run.id=x", "--model.nu=3"], capsys)
    assert "leave --model.nu=3 out" in fails(["fit", "--resume=runs/h1/x", "--model.nu=3"], capsys)
    Path("runs/h1/y").mkdir()
    Path("runs/h1/y/thesis.tex").touch()
    assert "holds no run" in fails(["fit", H1, *SMALL, "--run.id=y"], capsys)
    assert "has no config.yaml" in fails(["fit", "--resume", "runs/h1/y"], capsys)


def test_a_run_stopped_early_goes_on(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the very command that is printed, from the last call of TrainNN."""
    main(["fit", H1, *SMALL, "--run.id=whole"])
    main(["fit", H1, *SMALL, "--run.id=cut", "--run.name=my runs", "--trainer.max_steps=1"])
    (command,) = re.findall(r"go on with: python -m nl_lightning (.*)", capsys.readouterr().out)
    main(shlex.split(command))
    assert pq.read_table("runs/h1/whole/rounds.parquet").equals(pq.read_table("runs/my runs/cut/rounds.parquet"))
    assert json.loads(Path("runs/my runs/cut/summary.json").read_text())["finished"]


def test_an_interrupted_run_says_how_to_go_on(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: BanditData, count: int) -> None:
        if self.played == 20:
            raise RuntimeError("interrupted")
        play(self, count)

    play = BanditData.play
    with monkeypatch.context() as patch:
        patch.setattr(BanditData, "play", interrupted)
        with pytest.raises(RuntimeError, match="interrupted"):
            main(["fit", H1, *SMALL, "--run.id=x", "--run.checkpoint_every=1"])
        assert "go on with: python -m nl_lightning fit --resume runs/h1/x" in capsys.readouterr().out
        with pytest.raises(RuntimeError, match="interrupted"):
            main(["fit", "--resume=runs/h1/x"])
    main(["fit", "--resume=runs/h1/x"])
    assert pq.read_table("runs/h1/x/rounds.parquet").num_rows == 400


@pytest.mark.parametrize("leftover", ["config.yaml", ".lock"])
def test_a_kill_before_the_first_checkpoint(leftover: str, directory: Path) -> None:
    """What the first milliseconds of a run leave behind is no obstacle."""
    main(["fit", H1, *SMALL, "--run.id=whole"])
    Path("runs/h1/cut").mkdir()
    if leftover == "config.yaml":
        Path("runs/h1/cut/config.yaml").write_text(Path("runs/h1/whole/config.yaml").read_text())
        for made in ("wandb/offline-run-1", "csv", "rounds"):
            Path("runs/h1/cut", made).mkdir(parents=True)
    else:
        Path("runs/h1/cut/.lock").touch()
    main(["fit", H1, *SMALL, "--run.id=cut"])
    assert pq.read_table("runs/h1/whole/rounds.parquet").equals(pq.read_table("runs/h1/cut/rounds.parquet"))


def test_one_process_a_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory(Path("runs/h1/x")).claimed("model: other"):
        before = sorted(Path("runs/h1/x").iterdir())
        Path("runs/h1/x/config.yaml").unlink()
        assert "in use by another process" in fails(["fit", H1, *SMALL, "--run.id=x"], capsys)
        assert sorted(Path("runs/h1/x").iterdir()) == [path for path in before if path.name != "config.yaml"]


def test_loggers_of_a_repetition_are_its_own(directory: Path) -> None:
    main(["fit", H1, CSV, *SMALL, "--run.id=one"])
    main(["fit", "--config=runs/h1/one/config.yaml", "--run.id=two"])
    assert [path.name for path in Path("runs/h1/one/csv").iterdir()] == ["version_0"]
    assert [path.name for path in Path("runs/h1/two/csv").iterdir()] == ["version_0"]


def test_a_kill_between_the_last_checkpoint_and_the_summary(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main(["fit", H1, *SMALL, "--run.id=whole"])

    def killed(*_: object) -> None:
        raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("nl_lightning.reporting.plots.plot", killed)
        with pytest.raises(KeyError, match="killed"):
            main(["fit", H1, *SMALL, "--run.id=cut"])
    assert not Path("runs/h1/cut/summary.json").exists()
    main(["fit", "--resume", "runs/h1/cut"])
    assert pq.read_table("runs/h1/whole/rounds.parquet").equals(pq.read_table("runs/h1/cut/rounds.parquet"))
    assert json.loads(Path("runs/h1/cut/summary.json").read_text())["finished"]


def test_test_command(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", H1, *SMALL, "--run.id=x"])
    run = ["test", "--config=runs/h1/x/config.yaml"]
    checkpoint = "--ckpt_path=runs/h1/x/checkpoints/last.ckpt"
    main([*run, checkpoint])
    assert "test/regret" in capsys.readouterr().out
    assert "its agent is NeuralLog-UCB-2" in fails([*run, checkpoint, "--model=NeuralLogUCB1"], capsys)
    assert "its nu is" in fails([*run, checkpoint, "--model.nu=3"], capsys)
    assert "give its checkpoint with --ckpt_path" in fails(run, capsys)
    assert "There is no checkpoint" in fails([*run, "--ckpt_path=nosuch.ckpt"], capsys)
    Path("cut.ckpt").write_bytes(Path("runs/h1/x/checkpoints/last.ckpt").read_bytes()[:5000])
    assert "is not a checkpoint, or is damaged" in fails([*run, "--ckpt_path=cut.ckpt"], capsys)


@pytest.mark.parametrize("name", ["NeuralLog-TS-1", "ada-OFU-ECOLog"])
def test_an_agent_is_taken_out_of_a_run(name: str, directory: Path) -> None:
    """Lightning's own way, with nothing but the checkpoint."""
    main(["fit", H1, *SMALL, "--model", name, "--run.id=x"])
    agent = AGENTS[name].load_from_checkpoint("runs/h1/x/checkpoints/last.ckpt")
    assert agent.rounds.tolist() == [40] * 10
    assert agent.act(torch.rand(3, 20)).arm.shape == (10,)


def test_an_environment_of_blocks_makes_an_agent_of_blocks(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = ["--data.environment=tests.support.block_environment.Signs", "--data.rounds=200", "--model.nu=0.01"]
    main(["fit", "--model=NeuralLogUCB2", *environment, "--model.replicas=3", "--run.id=x", "--trainer.max_steps=2"])
    main(["fit", "--resume=runs/fit/x"])
    summary = json.loads(Path("runs/fit/x/summary.json").read_text())
    # by chance it would be two thirds of 200
    assert summary["over_replicas"][0]["regret"] < 90
    checkpoint = "--ckpt_path=runs/fit/x/checkpoints/last.ckpt"
    main(["test", "--config=runs/fit/x/config.yaml", checkpoint])
    agent = AGENTS["NeuralLog-UCB-2"].load_from_checkpoint("runs/fit/x/checkpoints/last.ckpt")
    assert agent.buffer.x.shape[2] == 3
    # each of the three blocks has two features and a bias
    assert agent.network.weights[0].shape[2] == 9
    wrong = ["fit", "--model=NeuralLogUCB2", *environment, "--model.blocks=2"]
    assert "model.blocks is 2, but the environment's arms have 3 blocks" in fails(wrong, capsys)


def test_a_run_goes_on_with_its_precision(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", H1, *SMALL, "--run.id=x", "--trainer.max_steps=1"])
    assert "differ in trainer.precision" in fails(["fit", "--resume=runs/h1/x", "--trainer.precision=64-true"], capsys)


def test_kill_minus_nine_and_go_on(directory: Path) -> None:
    """The real thing: processes killed at two moments of a run, which then ends as if nothing had been."""
    arguments = [H1, "--data.rounds=600", "--model.replicas=2", "--run.checkpoint_every=2", "--model.steps=60"]
    command = [sys.executable, "-m", "nl_lightning", "fit", *arguments, "--trainer.enable_progress_bar=false"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--run.id=whole"], check=True, env=environment, capture_output=True)
    killed = 0
    for parts in (1, 3):
        process = subprocess.Popen([*command, "--run.id=cut"], env=environment, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            if len(list(Path("runs/h1/cut/rounds").glob("from-*.parquet"))) >= parts:
                process.send_signal(signal.SIGKILL)
                killed += 1
                break
            time.sleep(0.001)
        process.wait()
    assert killed == 2
    subprocess.run([*command, "--run.id=cut"], check=True, env=environment, capture_output=True)
    assert pq.read_table("runs/h1/whole/rounds.parquet").equals(pq.read_table("runs/h1/cut/rounds.parquet"))
    results = [json.loads(Path(f"runs/h1/{name}/summary.json").read_text()) for name in ("whole", "cut")]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


def test_threads_on_the_command_line(tmp_path: Path) -> None:
    main(["fit", H1, *SMALL, "--threads", "1", f"--run.dir={tmp_path}", "--run.id=a"])
    main(["fit", H1, *SMALL, "--threads=2", f"--run.dir={tmp_path}", "--run.id=b"])
    found = [yaml.safe_load((tmp_path / "h1" / run / "config.yaml").read_text())["data"]["threads"] for run in "ab"]
    assert found == [1, 2]
