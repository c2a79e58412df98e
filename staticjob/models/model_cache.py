"""Model files that come from elsewhere: fetched once per machine, under a lock, checked before use.

The cache is `$STATICJOB_CACHE` (default ~/.cache/staticjob). A directory in it is named by what the
store said it holds, so another version of a model is another directory, and it appears by one rename
after every file arrived whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pkgutil
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from staticjob.errors import ConfigError, InfrastructureError
from staticjob.nearest import meant
from staticjob.storage.pinned import PinnedObject

BLOCK = 8 << 20
# Hidden, so that it is never taken for one of the model's own files.
CONTENTS = ".contents.json"


def cache_root() -> Path:
    return Path(os.environ.get("STATICJOB_CACHE") or "~/.cache/staticjob").expanduser()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` against every process of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def file_digest(path: Path) -> str:
    """sha256 of a file, remembered by path, size and modification time."""
    stat = path.stat()
    key = hashlib.sha256(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()
    note = cache_root() / "digests" / key
    with contextlib.suppress(OSError):
        known = note.read_text()
        if len(known) == hashlib.sha256().digest_size * 2:
            return known
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    # A read-only home only costs the next call another pass over the file.
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary = note.with_name(f"{key}.{os.getpid()}")
        temporary.write_text(digest)
        temporary.replace(note)
    return digest


def fetch(uri: str, wanted: Callable[[str], bool]) -> Path:
    """The local copy of the model directory `uri` in an object store.

    Raises ConfigError when no wanted object lies beneath it, InfrastructureError when the store fails
    or the disk is full.
    """
    from staticjob import storage

    prefix = uri.rstrip("/") + "/"
    found = {o.uri.removeprefix(prefix): o for o in storage.list_objects(prefix)}
    objects = {name: o for name, o in sorted(found.items()) if wanted(name)}
    if not objects:
        raise ConfigError(f"model.path: no model files beneath {prefix}")
    stated = json.dumps([[name, o.size, o.version] for name, o in objects.items()])
    name = hashlib.sha256(f"{prefix}\0{stated}".encode()).hexdigest()[:32]
    models = cache_root() / "models"
    final = models / name
    try:
        with locked(models / f"{name}.lock"):
            if not _whole(final):
                shutil.rmtree(final, ignore_errors=True)
                _download(objects, final)
    except OSError as error:
        raise InfrastructureError(f"model cache {final}: {error.strerror or error}") from None
    return final


def _download(objects: dict[str, PinnedObject], final: Path) -> None:
    from staticjob import storage

    partial = final.with_name(f"{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    contents = {}
    for name, pinned in objects.items():
        target = partial / name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with storage.open_pinned(pinned) as source, target.open("wb") as sink:
            while block := source.read(BLOCK):
                digest.update(block)
                sink.write(block)
            sink.flush()
            os.fsync(sink.fileno())
        size = target.stat().st_size
        if size != pinned.size:
            raise InfrastructureError(f"{pinned.uri}: {size} of {pinned.size} bytes arrived; run again")
        contents[name] = [size, digest.hexdigest()]
    (partial / CONTENTS).write_text(json.dumps(contents))
    partial.rename(final)


def _whole(directory: Path) -> bool:
    """Whether every file is what was downloaded: sizes and digests."""
    try:
        contents = json.loads((directory / CONTENTS).read_text())
        return all(
            (directory / name).stat().st_size == size and file_digest(directory / name) == digest
            for name, (size, digest) in contents.items()
        )
    except (OSError, ValueError):
        return False


def from_hub(repo: str, revision: str | None, patterns: list[str], ignored: list[str]) -> Path:
    """The hub's own cache of a repository; huggingface_hub locks and checks it.

    Raises ConfigError when the hub knows no such model or revision. When the hub cannot be asked and the
    files are not cached: ConfigError where `repo` is nearly a model of an installed package or the hub is
    switched off, for then a retry cannot help; InfrastructureError otherwise.
    """
    from huggingface_hub import is_offline_mode, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f"{repo} at {revision}" if revision else repo
    try:
        return Path(
            snapshot_download(repo, revision=revision, allow_patterns=patterns, ignore_patterns=ignored)
        )
    except GatedRepoError:
        raise ConfigError(
            f"model.path: hub model {at} is gated; set HF_TOKEN to a token with access"
        ) from None
    except HFValidationError:
        raise ConfigError(
            f"model.path: {repo!r} is neither a directory here nor inside an installed package, nor can a "
            "model on the hub be called so"
        ) from None
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise ConfigError(
            f"model.path: {at!r} is no directory here, no installed package and not a model on the hub"
            f"{_meant_package(repo)}"
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        hint = _meant_package(repo)
        offline = is_offline_mode()
        why = "HF_HUB_OFFLINE is set" if offline else type(error).__name__
        raise (ConfigError if hint or offline else InfrastructureError)(
            f"model.path: {at!r} is neither a directory here nor inside an installed package, and the hub "
            f"could not be asked for it ({why})"
            f"{hint or '; correct it, give a local or s3:// directory, or download it beforehand'}"
        ) from None


def _meant_package(path: str) -> str:
    """Which directory of an installed package was meant, if all but the package's name is right; else ''."""
    inside = path.partition("/")[2]
    homes = {m.name: getattr(m.module_finder, "path", None) for m in pkgutil.iter_modules() if m.ispkg}
    packages = [name for name, home in homes.items() if home and Path(home, name, inside).is_dir()]
    return meant(path, [f"{name}/{inside}" for name in packages], cutoff=0.8) if inside else ""
