"""Where every object of a job lies, as pure functions of the output URI and the fingerprint.

Everything that is not the product lies under `_staticjob/`: readers of datasets skip names
that start with an underscore. One fingerprint never sees another's objects.
"""

from __future__ import annotations

from dataclasses import dataclass

WORK_FOLDER = "_staticjob"


def join(base: str, *names: str) -> str:
    """Join URI or path segments with single slashes."""
    return "/".join([base.rstrip("/"), *(n.strip("/") for n in names)])


def history_uri(output_template: str, job: str) -> str:
    """Where a job's history lies: beneath the part of its output URI that no date changes."""
    fixed, placeholder, _ = output_template.partition("{")
    base = fixed.rsplit("/", 1)[0] if placeholder else output_template
    return join(base, WORK_FOLDER, "history", f"{job}.json")


def sweep_html(output: str) -> str:
    """The table of a sweep whose points lie beneath `output`."""
    return join(output, "sweep.html")


@dataclass(frozen=True)
class Output:
    """The published objects beneath `output.uri`."""

    uri: str

    @property
    def manifest(self) -> str:
        return join(self.uri, "_manifest.json")

    @property
    def report_html(self) -> str:
        return join(self.uri, "report.html")

    @property
    def report_json(self) -> str:
        return join(self.uri, "report.json")

    @property
    def success(self) -> str:
        return join(self.uri, "_SUCCESS")

    def file(self, path: str) -> str:
        """The output object that mirrors an input file."""
        return join(self.uri, path)

    @property
    def claims(self) -> str:
        """The folder of the claims on this output (`claim.py`)."""
        return join(self.uri, WORK_FOLDER, "claims")

    def claim(self, number: int) -> str:
        return join(self.claims, f"{number:06d}.json")

    def work(self, fingerprint: str) -> Work:
        """The work prefix of one fingerprint."""
        return Work(join(self.uri, WORK_FOLDER, fingerprint[:16]))


@dataclass(frozen=True)
class Work:
    """The objects beneath `<output>/_staticjob/<fingerprint>`; `uri` is what tasks pass on.

    `shared_tokens` is where the job's tokens lie when other jobs have the same.
    """

    uri: str
    shared_tokens: str | None = None

    @property
    def tokens(self) -> str:
        """The folder of what tokenize makes."""
        return self.shared_tokens or join(self.uri, "tokens")

    @property
    def job(self) -> str:
        return join(self.uri, "job.json")

    @property
    def config(self) -> str:
        """The resolved job file: `staticjob run` on it runs the very same job again."""
        return join(self.uri, "job.yaml")

    @property
    def started(self) -> str:
        """When the latest run began: tells chunks it reused from chunks it computed."""
        return join(self.uri, "started.json")

    @property
    def plan(self) -> str:
        return join(self.uri, "plan.json")

    def split(self, split: str) -> str:
        """Marker and statistics of a tokenized split; written last."""
        return join(self.tokens, f"{split}.json")

    def answered(self, split: str) -> str:
        """Rows answered without a model (empty, null, too_long, error): Arrow IPC, in row order."""
        return join(self.tokens, f"{split}.answered.arrow")

    def items(self, split: str) -> str:
        """Elements of every row of a split, in row order, where rows are lists."""
        return join(self.tokens, f"{split}.items")

    def part_rows(self, part: str) -> str:
        return join(self.tokens, f"{part}.rows")

    def part_ids(self, part: str) -> str:
        return join(self.tokens, f"{part}.ids")

    @property
    def chunks(self) -> str:
        return join(self.uri, "chunks")

    def chunk(self, chunk: str, name: str = "") -> str:
        """The folder of a chunk, or an object in it (`commit.json`, `progress.json`, …)."""
        return join(self.uri, "chunks", chunk, name) if name else join(self.uri, "chunks", chunk)

    def commit(self, chunk: str) -> str:
        return self.chunk(chunk, "commit.json")

    def progress(self, chunk: str) -> str:
        return self.chunk(chunk, "progress.json")

    def merge(self, group: str) -> str:
        """Marker of a merged group; written last."""
        return join(self.uri, "merge", f"{group}.json")
