"""What has been measured since the file of samples was written: appended visit by visit.

Whatever ends the process costs no more than the visit under way. The text is that of a file of samples, with
a line `# visit` behind the rows of each visit and `# round` behind the last of a round.
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
class Progress:
    """How far a measurement is."""

    rounds: int = 0
    """Complete ones."""
    visits: int = 0
    """Of the next one."""

    @classmethod
    def told_by(cls, meta: dict[str, Any]) -> Progress:
        """What samples say of themselves."""
        return cls(int(meta.get("rounds", 0)), int(meta.get("visits", 0)))

    def after(self, markers: list[str]) -> Progress:
        """When these visits and rounds are over, too."""
        rounds = markers.count(ROUND)
        if not rounds:
            return Progress(self.rounds, self.visits + len(markers))
        last = len(markers) - 1 - markers[::-1].index(ROUND)
        return Progress(self.rounds + rounds, len(markers) - 1 - last)


class Journal:
    """The file, made when the first visit is added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.TextIOWrapper | None = None

    def add(self, samples: StepSamples, meta: dict[str, Any], marker: str = VISIT) -> None:
        """Rows and what they end; they are with the system when this returns.

        Args:
            meta: of the measurement, with how far it was when the journal began.
        """
        text = io.StringIO(newline="")
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8", newline="")
            write_header(meta, text)
        write_rows(samples, text)
        self._file.write(text.getvalue() + marker)
        self._file.flush()

    def drop(self) -> None:
        """What stands in it stands elsewhere now."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.path.unlink(missing_ok=True)


def read_journal(path: Path) -> tuple[StepSamples, Progress] | None:
    """The whole visits of a journal, and how far these bring the measurement; `None` if there are none.

    Raises:
        InputError: it is damaged elsewhere than at its end.
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
    return samples, Progress.told_by(samples.meta).after(markers)
