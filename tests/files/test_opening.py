from __future__ import annotations

import gzip
import os
import stat
import threading
from pathlib import Path

import pytest

from blis_py.errors import InputError
from blis_py.files import opening
from blis_py.files.opening import read_text, reading

TABLE = b"a,b\n1,2\n"


def lines(path: Path) -> list[str]:
    with reading(path) as text:
        return list(text)


def refusal(call: object, *arguments: object) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_text_is_the_same_whether_packed_or_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for content in (
        TABLE,
        gzip.compress(TABLE),
        b"\xef\xbb\xbf" + TABLE,
        gzip.compress(b"\xef\xbb\xbf" + TABLE),
    ):
        path.write_bytes(content)
        assert lines(path) == ["a,b\n", "1,2\n"]
        assert read_text(path) == TABLE.decode()


PACKED = gzip.compress(TABLE * 999, mtime=0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (PACKED[:-3], "damaged gzip file"),
        (PACKED[:15], "damaged gzip file"),
        (PACKED[:20] + b"\x00" + PACKED[21:], "damaged gzip file"),
        (PACKED + b"more", "damaged gzip file"),
        (TABLE.decode().encode("utf-16"), "not a UTF-8 text file"),
        (b"caf\xe9,1\n", "not a UTF-8 text file"),
    ],
    ids=["cut", "cut early", "changed", "followed by more", "UTF-16", "Latin-1"],
)
@pytest.mark.parametrize("read", [lines, read_text])
def test_what_is_no_text_is_one_clear_error(
    tmp_path: Path, content: bytes, problem: str, read: object
) -> None:
    path = tmp_path / "thing"
    path.write_bytes(content)
    assert problem in refusal(read, path)
    assert str(path) in refusal(read, path)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000, "nowhere/at/all"], ids=ascii)
@pytest.mark.parametrize("read", [lines, read_text])
def test_what_is_no_path_is_one_clear_error(tmp_path: Path, name: str, read: object) -> None:
    refusal(read, Path(str(tmp_path) + "/" + name))


@pytest.mark.parametrize("read", [lines, read_text])
def test_a_folder_is_one_clear_error(tmp_path: Path, read: object) -> None:
    assert "Is a directory" in refusal(read, tmp_path)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LONGEST_LINE_BYTES", 1 << 20)
    path = tmp_path / "zeros"
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    assert "a line of more than 1 MiB" in refusal(lines, path)
    path.write_bytes(b"x" * (1 << 20))
    assert lines(path) == ["x" * (1 << 20)]


@pytest.mark.slow
def test_a_file_that_expands_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n" * 2_000_000))
    assert sum(1 for _ in lines(path)) == 2_000_000  # within what any file may come to
    monkeypatch.setattr(opening, "ALWAYS_EXPANDED_BYTES", 1 << 20)
    assert "expands to more than 200 times its size" in refusal(lines, path)


def test_a_text_larger_than_allowed_is_refused_packed_or_not(tmp_path: Path) -> None:
    path = tmp_path / "text"
    for content in (b"x" * 2_000_000, gzip.compress(b"x" * 2_000_000)):
        path.write_bytes(content)
        with pytest.raises(InputError, match="larger than 1 MiB"):
            read_text(path, most_bytes=1 << 20)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert read_text(path) == ""
    assert "not an ordinary file" in refusal(lines, path)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="there is no /dev/fd")
def test_a_pipe_is_read_to_its_end_however_slow_it_is() -> None:
    reader, writer = os.pipe()
    halves = [b"a: 1\n" * 100_000, b"b: 2\n"]

    def write() -> None:
        with open(writer, "wb") as pipe:
            for half in halves:
                pipe.write(half)
                pipe.flush()

    thread = threading.Thread(target=write)
    thread.start()
    assert read_text(Path(f"/dev/fd/{reader}")) == b"".join(halves).decode()
    thread.join()
    os.close(reader)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
def test_a_device_without_end_is_refused() -> None:
    assert stat.S_ISCHR(Path("/dev/zero").stat().st_mode)
    assert "not an ordinary file" in refusal(lines, Path("/dev/zero"))
    assert "larger than" in refusal(read_text, Path("/dev/zero"))
