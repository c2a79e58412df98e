"""A sweep runs its job at every point of the grid, counts each against gold, and keeps what is finished."""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from scipy.stats import spearmanr
from tiny_encoders import rows
from tiny_encoders import save as save_encoder
from tiny_tasks import LABELS, class_logits, save_classifier, save_tokenizer, words

from staticjob import storage
from staticjob.cli import main
from staticjob.config.job import OutputConfig
from staticjob.engine import calibrate
from staticjob.errors import ConfigError, DataError
from staticjob.evaluation.grid import read_grid
from staticjob.evaluation.results import SweepResult
from staticjob.evaluation.sweep import load_sweep, prepare_points, run_sweep, tabulate
from staticjob.layout import sweep_html
from staticjob.local_run import run_job
from staticjob.records.rates import Ceilings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sweep over two classifiers, whose gold labels are those of the first one."""
    models = [tmp_path / name for name in ("bert", "roberta")]
    for model in models:
        save_tokenizer(save_classifier(model.name, model))
    texts = rows([3, 30, 12, 7, 25, 9])
    likeliest = class_logits(models[0], [[2, *text, 3] for text in texts]).argmax(1).tolist()
    sink = io.BytesIO()
    columns = {
        "text": list(map(words, texts)),
        "gold": [LABELS[i] for i in likeliest],
        "other": [LABELS[i - 1] for i in likeliest],
    }
    pq.write_table(pa.table(columns), sink)
    storage.put(f"{tmp_path}/in/p.parquet", sink.getvalue())
    data = {
        "name": "sweep",
        "task": "classify",
        "model": {"path": "x", "device": "cpu"},
        "input": {"uri": f"{tmp_path}/in", "columns": {"text": "text"}, "keep": ["gold", "other"]},
        "output": {"uri": f"{tmp_path}/out"},
        "batching": {"token_budget": 64},
        "sweep": {"model.path": [str(m) for m in models], "limits.max_length": [40]},
        "metrics": [
            {"metric": "accuracy", "gold": "gold"},
            {"metric": "macro_f1", "gold": "gold"},
            {"metric": "accuracy", "gold": "other"},
        ],
    }
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def test_every_point_is_run_counted_and_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # How fast the machine is at best is not the question here, and takes seconds.
    monkeypatch.setattr(calibrate, "ceilings", lambda *_: Ceilings(flops=1.0, bytes_per_second=1.0))
    result, uri = run_sweep(read_grid(file, None))
    settings = [tuple(point.settings.values()) for point in result.points]
    assert [(Path(path).name, limit) for path, limit in settings] == [("bert", 40), ("roberta", 40)]
    right, wrong = result.points
    assert right.metrics["accuracy of gold"].value == right.metrics["macro_f1"].value == 1.0
    assert right.metrics["accuracy of other"].value == 0.0
    assert wrong.metrics["accuracy of gold"].value < 1.0
    assert all(p.useful_tokens > 0 and 0 < p.useful_share <= 1 for p in result.points)
    assert SweepResult.model_validate_json(storage.read(uri)) == result
    assert run_sweep(read_grid(file, None))[0] == result, "finished points are not computed again"


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("sweep", {"limits.max_length": 8}, "expected fields with lists"),
        ("sweep", {"limits.max_lenth": [8]}, "max_lenth"),
        (
            "metrics",
            [{"metric": "acuracy", "gold": "gold"}],
            "metrics.0: metric 'acuracy': .*did you mean 'acc",
        ),
        ("metrics", {"metric": "accuracy", "gold": "gold"}, "metrics: expected a list"),
        ("metrics", [{"metric": "accuracy", "gold": "gold"}] * 2, "metrics.1: the same as metrics.0; leave"),
        ("metrics", [{"metric": "accuracy", "gold": "kind"}], "column 'kind'; name it in input.keep"),
        ("metrics", [{"metric": "mrr", "gold": "gold", "group_by": "other"}], "gives, the job's is classify"),
        ("sweep", {"limits.max_length": [8, 8]}, "stands there twice; leave one out"),
    ],
)
def test_a_grid_or_metric_that_does_not_fit_is_refused_before_anything_runs(
    section: str, value: object, message: str, file: Path
) -> None:
    data = yaml.safe_load(file.read_text())
    data[section] = value
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=message) as error:
        read_grid(file, None)
    assert "\n" not in str(error.value)


def test_points_whose_texts_become_the_same_tokens_share_them(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "ceilings", lambda *_: Ceilings(flops=1.0, bytes_per_second=1.0))
    other = save_classifier("bert", tmp_path / "other", initializer_range=0.5)
    save_tokenizer(other)
    data = yaml.safe_load(file.read_text())
    data["sweep"] = {"limits.max_length": [40, 16], "model.path": [str(tmp_path / "bert"), str(other)]}
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    result, _ = run_sweep(read_grid(file, None))
    rows_objects = [o.uri for o in storage.list_objects(f"{tmp_path}/out/") if o.uri.endswith(".rows")]
    assert len(rows_objects) == 2, "one for each length limit"
    output = OutputConfig(uri=f"{tmp_path}/alone", history_uri=f"{tmp_path}/alone/history.json")
    run_job(read_grid(file, None).points[1].config.model_copy(update={"output": output}))
    own, point = (
        pq.read_table(io.BytesIO(storage.read(f"{uri}/p.parquet")))
        for uri in (output.uri, result.points[1].output)
    )
    assert own.equals(point)
    sweep, uri = prepare_points(read_grid(file, None))
    assert [bool(point.splits) for point in sweep.points] == [True, False, True, False]
    assert tabulate(load_sweep(uri))[0] == result


def test_the_table_shows_intervals_and_is_refused_while_a_point_is_not_finished(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "ceilings", lambda *_: Ceilings(flops=1.0, bytes_per_second=1.0))
    grid = read_grid(file, None)
    sweep, _ = prepare_points(grid)
    with pytest.raises(DataError, match="is not finished; run the sweep again"):
        tabulate(sweep)
    result, _ = run_sweep(grid)
    page = storage.read(sweep_html(grid.output)).decode()
    assert page.count("<tr>") == 3
    assert page.count('<svg class="interval"') == 6
    value = result.points[1].metrics["accuracy of gold"]
    assert f"{value.low:.3f} to {value.high:.3f}" in page


def test_all_points_together_are_cut_into_no_more_mapped_tasks_than_one_job(file: Path) -> None:
    data = yaml.safe_load(file.read_text())
    data["airflow"] = {"max_mapped_tasks": 5}
    file.write_text(yaml.safe_dump(data))
    assert [point.config.max_mapped_tasks for point in read_grid(file, None).points] == [2, 2]


def test_a_sweeps_file_is_validated_with_all_its_points(file: Path) -> None:
    done = CliRunner().invoke(main, ["validate", str(file), "--json"])
    told = json.loads(done.stdout)
    assert [Path(point["model.path"]).name for point in told["sweep"]] == ["bert", "roberta"]
    assert [metric["metric"] for metric in told["metrics"]] == ["accuracy", "macro_f1", "accuracy"]


def test_a_sweep_over_dates_has_a_folder_for_each(file: Path) -> None:
    data = yaml.safe_load(file.read_text())
    data["sweep"] = {"airflow.start_date": [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]}
    file.write_text(yaml.safe_dump(data))
    assert len({point.config.output.uri for point in read_grid(file, None).points}) == 2


def test_binary_embeddings_are_compared_by_their_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "ceilings", lambda *_: Ceilings(flops=1.0, bytes_per_second=1.0))
    save_tokenizer(save_encoder("bert", tmp_path / "bert"))
    gold = [0.1, 0.9, 0.4, 0.6, 0.2, 0.7]
    sink = io.BytesIO()
    texts = list(map(words, rows([5, 9, 3, 7, 11, 2, 8, 4, 6, 10, 12, 13])))
    # pandas writes times in nanoseconds, which Python's own do not hold.
    times = pa.array([1 + i // 2 for i in range(12)], pa.timestamp("ns"))
    pairs = {"text": texts, "pair": times, "gold": [g for g in gold for _ in "ab"]}
    pq.write_table(pa.table(pairs), sink)
    storage.put(f"{tmp_path}/in/p.parquet", sink.getvalue())
    data = {
        "name": "sweep",
        "task": "embed",
        "model": {"path": str(tmp_path / "bert"), "device": "cpu"},
        "input": {"uri": f"{tmp_path}/in", "columns": {"text": "text"}, "keep": ["pair", "gold"]},
        "output": {"uri": f"{tmp_path}/out"},
        "batching": {"token_budget": 64},
        "sweep": {"embed.output_dtype": ["float32", "binary"]},
        "metrics": [{"metric": "spearman", "gold": "gold", "group_by": "pair"}],
    }
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(data))
    floats, bits = run_sweep(read_grid(file, None))[0].points
    table = pq.read_table(io.BytesIO(storage.read(f"{floats.output}/p.parquet")))
    signs = np.sign(np.array(table["embedding"].to_pylist()))
    expected = spearmanr((signs[::2] * signs[1::2]).sum(1), gold).statistic
    assert bits.metrics["spearman"].value == pytest.approx(expected)


@pytest.mark.parametrize("command", ["run", "plan", "prepare"])
def test_a_sweeps_file_given_to_another_command_names_the_one_that_runs_it(command: str, file: Path) -> None:
    done = CliRunner().invoke(main, [command, str(file)])
    assert done.exit_code == 2
    assert f"a sweep's file; `staticjob sweep {file}` runs it" in done.stderr
