"""A terminal for the black-box tests: a process on a pty, and the screen that it draws.

The screen knows what the binary uses: text, return, line feed, backspace, and of the escape sequences
cursor movement, erasing and colours; another sequence is an AssertionError. Other control characters,
which a random model likes to write, are passed over.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import support

_SEQUENCE = re.compile(rb"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """Rows of text; what scrolls off the top is kept in `history`."""

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns = rows, columns
        self.lines, self.history = [""], []
        self.row = self.column = 0
        self.num_wrapped = 0
        self.colours = set()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        data, self._rest = self._rest + data, b""
        at = 0
        while at < len(data):
            byte = data[at : at + 1]
            if byte == b"\x1b":
                match = _SEQUENCE.match(data, at)
                if match is None:
                    if len(data) - at < 16:
                        self._rest = data[at:]
                        return
                    at += 1
                    continue
                self._sequence(match[1].decode(), match[2].decode())
                at = match.end()
                continue
            at += 1
            if byte == b"\r":
                self.column = 0
            elif byte == b"\n":
                self._down()
            elif byte == b"\b":
                self.column = max(0, self.column - 1)
            elif byte >= b" ":
                self._put(byte.decode("latin-1"))

    def _down(self) -> None:
        self.row += 1
        if self.row == self.rows:
            self.history.append(self.lines.pop(0))
            self.row -= 1
        while len(self.lines) <= self.row:
            self.lines.append("")

    def _put(self, char: str) -> None:
        if self.column == self.columns:
            self.num_wrapped += 1
            self.column = 0
            self._down()
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
        self.column += 1

    def _sequence(self, argument: str, kind: str) -> None:
        count = int(argument or 1) if argument.isdigit() or not argument else 0
        if kind == "A":
            self.row = max(0, self.row - count)
        elif kind == "C":
            self.column = min(self.columns - 1, self.column + count)
        elif kind == "D":
            self.column = max(0, self.column - count)
        elif kind == "G":
            self.column = count - 1
        elif kind == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif kind == "J":
            assert argument in ("", "0"), argument
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif kind == "P":  # delete characters
            line = self.lines[self.row]
            self.lines[self.row] = line[: self.column] + line[self.column + count :]
        elif kind == "@":  # insert blanks
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + " " * count + line[self.column :]
        elif kind == "m":
            self.colours.add(argument)
        else:
            raise AssertionError(f"unknown sequence {argument}{kind}")

    def text(self) -> str:
        return "\n".join(self.history + self.lines)


class Process:
    """The binary with a terminal as its standard error, and, where not given, as input and output."""

    def __init__(self, *words, rows=24, columns=80, env=None, stdin=None, stdout=None):
        self.screen = Screen(rows, columns)
        self.raw = b""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            support.command_of(words),
            stdin=slave if stdin is None else stdin,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            env=support.environment({"TERM": "xterm", **(env or {})}),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def signal(self, number=signal.SIGINT) -> None:
        self.process.send_signal(number)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _state(self, what: str) -> str:
        return f"{what} (exit code {self.process.poll()}):\n{self.screen.text()[-1500:]}"

    def _take(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], max(0.0, seconds))
        if not ready:
            return False
        data = os.read(self.master, 256)  # so that no picture between two reads is missed
        self.raw += data
        self.screen.feed(data)
        return True

    def wait_for(self, condition, seconds: float = 60) -> None:
        """Reads until condition(screen); AssertionError when it does not come."""
        until = time.monotonic() + seconds
        while not condition(self.screen):
            ended = self.process.poll() is not None
            if not self._take(0 if ended else min(0.2, until - time.monotonic())):
                assert not ended, self._state("ended")
                assert time.monotonic() < until, self._state("does not come")

    def wait_for_text(self, text: str, seconds: float = 60) -> None:
        self.wait_for(lambda screen: text in screen.text(), seconds)

    def wait_for_editing(self, seconds: float = 60) -> None:
        """Until keys go to the program one by one. A prompt is shown a moment before."""
        until = time.monotonic() + seconds
        while termios.tcgetattr(self.slave)[3] & termios.ICANON:
            self._take(0.01)
            assert time.monotonic() < until, self._state("does not edit")

    def settle(self, seconds: float = 0.5) -> None:
        """Until nothing is written for so long."""
        while self._take(seconds):
            pass

    def finish(self, seconds: float = 60) -> int:
        """Reads to the end of the process; its exit code. The terminal is as it was before."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            self._take(0.05)
            assert time.monotonic() < until, self._state("does not end")
        while self._take(0):
            pass
        assert termios.tcgetattr(self.slave) == self.before, "the terminal was left changed"
        return self.process.returncode
