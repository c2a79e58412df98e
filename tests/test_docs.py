"""The operators' pages: what they quote is what the programs say, what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from staticjob.config.job import JobConfig

REPOSITORY = Path(__file__).parents[1]
DOCS = sorted((REPOSITORY / "docs").glob("*.md"))
# Said by Python's faulthandler; made of the name of a signal.
FOREIGN = {"Timeout!", "ended by SIGKILL"}


def source() -> str:
    """All code, with adjacent string literals joined as Python joins them."""
    files = [*REPOSITORY.glob("staticjob/**/*.py"), *REPOSITORY.glob("plugins/**/*.py")]
    return re.sub(r'"\s*\n?\s*f?"', "", "\n".join(file.read_text() for file in files))


def test_every_message_of_the_runbook_is_one_that_a_step_gives() -> None:
    rows = [
        line.split("|")[1]
        for line in (REPOSITORY / "docs/runbook.md").read_text().splitlines()
        if "|" in line
    ]
    quoted = {text.strip("… ") for row in rows for text in re.findall(r"`([^`]*)`", row)}
    messages = {text for text in quoted if " " in text or "!" in text}
    assert len(messages) > 12
    code = source()
    assert {text for text in messages if text not in code} - FOREIGN == set()


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_and_files_named_by_a_page_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([\w./-]+)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:docker|docs|staticjob|benchmarks)/[\w./-]*)`", text):
        assert (REPOSITORY / path).exists() or path == "docker/.env", path


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_keys_of_the_job_file_named_by_a_page_exist(page: Path) -> None:
    schema = JobConfig.model_json_schema()
    sections = {
        name: definition["properties"].keys()
        for name, field in JobConfig.model_fields.items()
        for definition in [schema["$defs"].get(f"{name.capitalize()}Config")]
        if definition and field
    }
    named = re.findall(r"`(\w+)\.(\w+)[`:]", page.read_text())
    unknown = {f"{section}.{key}" for section, key in named if key not in sections.get(section, [key])}
    assert unknown == set()
