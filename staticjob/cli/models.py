"""What is done to a model before a job names it."""

from __future__ import annotations

from pathlib import Path

import click

from staticjob.cli.group import command
from staticjob.terminal import console


@command("import-gguf")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def import_gguf_(path: Path, target: Path, as_json: bool) -> None:
    """Write the model in a GGUF file as a directory a job can name.

    PATH is one .gguf file; TARGET a local directory that does not exist yet. Quantised weights are
    expanded to float32.
    """
    from staticjob.models.import_gguf import import_gguf

    import_gguf(path, target)
    console.emit({"model": str(target)}, as_json)
