"""Journal of measurements since the sample file was written, appended visit by visit.

Any failure of the process costs at most the visit in progress. The text is that of a sample file, with a line
`# visit` after the rows of each visit and `# round` after the last of a round.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.traces.samples import StepSamples, parse_samples, write_header, write_rows

VISIT, ROUND = "# visit\n", "# round\n"


@dataclass(frozen=True, slots=True)
class ProfileProgress:
    """Progress of a measurement."""

    rounds: int = 0
    """Complete rounds."""
    visits: int = 0
    """Visits of the next round."""

    @classmethod
    def recorded_in(cls, meta: dict[str, Any]) -> ProfileProgress:
        """Progress recorded in the metadata of samples."""
        return cls(int(meta.get("rounds", 0)), int(meta.get("visits", 0)))

    def after(self, markers: list[str]) -> ProfileProgress:
        """Progress after these visits and rounds."""
        rounds = markers.count(ROUND)
        if not rounds:
            return ProfileProgress(self.rounds, self.visits + len(markers))
        last = len(markers) - 1 - markers[::-1].index(ROUND)
        return ProfileProgress(self.rounds + rounds, len(markers) - 1 - last)


class ProfileJournal:
    """Journal file, created with the first visit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.TextIOWrapper | None = None

    def add(self, samples: StepSamples, meta: dict[str, Any], marker: str = VISIT) -> None:
        """Append rows and a marker; they are flushed to the system on return.

        Args:
            meta: of the measurement, with its progress at the start of the journal.
        """
        text = io.StringIO(newline="")
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8", newline="")
            write_header(meta, text)
        write_rows(samples, text)
        self._file.write(text.getvalue() + marker)
        self._file.flush()

    def drop(self) -> None:
        """Delete the journal, once its content is stored elsewhere."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.path.unlink(missing_ok=True)


def read_journal(path: Path) -> tuple[StepSamples, ProfileProgress] | None:
    """The complete visits of a journal, and the progress with them; `None` if there are none.

    Raises:
        InputError: damage elsewhere than at the end.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(error.strerror or str(error), file=path, fix="check the path") from None
    last = max((number for number, line in enumerate(lines) if line in (VISIT, ROUND)), default=-1)
    if last < 0:
        return None
    whole = lines[: last + 1]
    markers = [line for line in whole if line in (VISIT, ROUND)]
    samples = parse_samples(path, (line for line in whole if line not in (VISIT, ROUND)))
    return samples, ProfileProgress.recorded_in(samples.meta).after(markers)
