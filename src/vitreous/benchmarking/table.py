"""The table of a benchmark (`BenchmarkResult`): a row for each contender, title, cells, notes; as text and as HTML."""

import html
from collections.abc import Mapping
from dataclasses import dataclass

from vitreous.benchmarking.contenders import Contender
from vitreous.benchmarking.timing import TimingSummary


@dataclass(frozen=True)
class BenchmarkRow:
    """The measurements of one contender of a benchmark."""

    name: str
    library: str
    mode: str
    ours: bool
    milliseconds: float
    """Milliseconds an image."""
    images_per_second: float
    spread: float
    rounds: int
    ratio: float | None
    """Speed relative to the fastest other library; None if there was none."""
    share: float
    """Share of the ceiling, counting the FLOPs of the whole network, skipped work included."""
    error: float
    """Largest difference of a logit from ours in fp32, relative to the largest logit."""
    memory: int | None
    """Peak bytes, with weights and optimiser state; only on CUDA, and for graphs before they are recorded."""


@dataclass(frozen=True)
class BenchmarkResult:
    """One network at one batch size in a benchmark: a row for each contender, fastest first, and their ceiling."""

    model: str
    task: str
    batch: int
    precision: str
    device: str
    flops: int
    """FLOPs of one image: a forward pass, or three times that for a training step."""
    ceiling: float
    """FLOP/s of the fastest matrix product."""
    ceiling_product: str
    rows: list[BenchmarkRow]
    left_out: dict[str, str]
    warnings: list[str]

    @property
    def images_at_ceiling(self) -> float:
        """The images a second that the note below a benchmark's table states as possible.

        It counts the FLOPs of the whole network, at the rate of the fastest matrix product.
        """
        return self.ceiling / self.flops

    @property
    def title(self) -> str:
        """The title of a benchmark's table: model, task, batch size, precision and device."""
        kind = "training step" if self.task == "training" else "inference"
        return f"{self.model}, {kind}, batch {self.batch}, {self.precision}, {self.device}"

    def cells(self) -> list[list[str]]:
        """Format a benchmark's table as text: a header, and a row for each contender."""
        memory = any(row.memory is not None for row in self.rows)
        header = ["", "images/s", "ms", "spread", "× peer", "of limit", "error", *(["GiB"] if memory else [])]
        return [header, *(_cells(row, memory) for row in self.rows)]

    def notes(self) -> list[str]:
        """Write the lines below a benchmark's table: the limit, how to read it, and what was left out."""
        rounds = min((row.rounds for row in self.rows), default=0)
        limit = f"limit: {self.ceiling / 1e9:,.0f} GFLOP/s (product {self.ceiling_product})"
        return [
            f"{limit}, {self.images_at_ceiling:,.1f} images/s at {self.flops / 1e9:.2f} GFLOP each",
            f"medians of {rounds} rounds; ms for each image; × the fastest peer; "
            "error: the logits' distance from ours in fp32",
            *(f"left out: {name}: {reason}" for name, reason in self.left_out.items()),
        ]

    def __str__(self) -> str:
        cells = self.cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            " ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            )
            for row in cells
        ]
        return "\n".join([self.title, *lines, *self.notes()])

    def _repr_html_(self) -> str:
        (first, *header), *rows = [[html.escape(cell) for cell in row] for row in self.cells()]
        head = "".join(f"<th>{cell}</th>" for cell in (first, *header))
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        notes = "<br>".join(html.escape(line) for line in self.notes())
        return f"<table><caption>{html.escape(self.title)}</caption><tr>{head}</tr>{body}</table><p>{notes}</p>"


def _cells(row: BenchmarkRow, memory: bool) -> list[str]:
    """Format one contender's row of a benchmark's table."""
    cells = [
        row.name,
        f"{row.images_per_second:,.1f}",
        f"{row.milliseconds:.3g}" if row.milliseconds < 100 else f"{row.milliseconds:.0f}",
        f"{row.spread:.0%}",
        "–" if row.ratio is None else f"{row.ratio:.2f}",
        f"{row.share:.0%}",
        f"{row.error:.0e}",
    ]
    if memory:
        cells.append("–" if row.memory is None else f"{row.memory / 2**30:.2f}")
    return cells


def to_rows(
    summaries: Mapping[str, TimingSummary],
    contenders: Mapping[str, Contender],
    batch: int,
    flops: int,
    ceiling: float,
    errors: Mapping[str, float],
    memory: Mapping[str, int | None],
) -> list[BenchmarkRow]:
    """Make the rows of a benchmark's table from the contenders' timings, fastest first."""
    rates = {name: batch / summary.median for name, summary in summaries.items()}
    peers = [rate for name, rate in rates.items() if contenders[name].library != "vitreous"]
    rows = [
        BenchmarkRow(
            name=name,
            library=contenders[name].library,
            mode=contenders[name].mode,
            ours=contenders[name].library == "vitreous",
            milliseconds=1e3 / rates[name],
            images_per_second=rates[name],
            spread=summary.spread,
            rounds=summary.rounds,
            ratio=rates[name] / max(peers) if peers else None,
            share=rates[name] * flops / ceiling,
            error=errors[name],
            memory=memory[name],
        )
        for name, summary in summaries.items()
    ]
    return sorted(rows, key=lambda row: -row.images_per_second)
