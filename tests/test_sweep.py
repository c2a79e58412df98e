"""A sweep runs its job at every point of the grid, counts each against gold, and keeps what is finished."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tiny_encoders import rows
from tiny_tasks import LABELS, class_logits, save_classifier, save_tokenizer, words

from staticjob import storage
from staticjob.engine import calibrate
from staticjob.errors import ConfigError
from staticjob.evaluation.sweep import SweepResult, read_sweep, run_sweep
from staticjob.records import Ceilings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sweep over two classifiers, whose gold labels are those of the first one."""
    models = [tmp_path / name for name in ("bert", "roberta")]
    for model in models:
        save_tokenizer(save_classifier(model.name, model))
    texts = rows([3, 30, 12, 7, 25, 9])
    likeliest = class_logits(models[0], [[2, *text, 3] for text in texts]).argmax(1).tolist()
    sink = io.BytesIO()
    columns = {"text": list(map(words, texts)), "gold": [LABELS[i] for i in likeliest]}
    pq.write_table(pa.table(columns), sink)
    storage.put(f"{tmp_path}/in/p.parquet", sink.getvalue())
    data = {
        "name": "sweep",
        "task": "classify",
        "model": {"path": "x", "device": "cpu"},
        "input": {"uri": f"{tmp_path}/in", "columns": {"text": "text"}, "keep": ["gold"]},
        "output": {"uri": f"{tmp_path}/out"},
        "batching": {"token_budget": 64},
        "sweep": {"model.path": [str(m) for m in models], "limits.max_length": [40]},
        "metrics": [{"metric": "accuracy", "gold": "gold"}, {"metric": "macro_f1", "gold": "gold"}],
    }
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def test_every_point_is_run_counted_and_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # How fast the machine is at best is not the question here, and takes seconds.
    monkeypatch.setattr(calibrate, "ceilings", lambda *_: Ceilings(flops=1.0, bytes_per_second=1.0))
    result, uri = run_sweep(file, None)
    settings = [tuple(point.settings.values()) for point in result.points]
    assert [(Path(path).name, limit) for path, limit in settings] == [("bert", 40), ("roberta", 40)]
    right, wrong = result.points
    assert right.metrics["accuracy"].value == right.metrics["macro_f1"].value == 1.0
    assert wrong.metrics["accuracy"].value < 1.0
    assert all(p.useful_tokens > 0 and 0 < p.useful_share <= 1 for p in result.points)
    assert SweepResult.model_validate_json(storage.read(uri)) == result
    assert run_sweep(file, None)[0] == result, "finished points are not computed again"


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("sweep", {"limits.max_length": 8}, "expected fields with lists"),
        ("sweep", {"limits.max_lenth": [8]}, "max_lenth"),
        ("metrics", [{"metric": "acuracy", "gold": "gold"}], "metrics.0.metric"),
    ],
)
def test_a_grid_or_metric_that_does_not_fit_is_refused_before_anything_runs(
    section: str, value: object, message: str, file: Path
) -> None:
    data = yaml.safe_load(file.read_text())
    data[section] = value
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=message) as error:
        read_sweep(file, None)
    assert "\n" not in str(error.value)
