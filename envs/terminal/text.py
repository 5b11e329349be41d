"""Text of a terminal's output, without the control sequences of ECMA-48.

Bytes may come in any pieces. The remaining text has no control character but newline, tab, carriage return and
backspace, of which `resolve` removes the last two by moving the cursor as they say. A sequence ends with its line at
the latest, so that a broken one costs no more text than that.
"""

import codecs
import re

_CANCEL = "\x18\x1a"
_LINE_ENDS = "\n\x0b\x0c"
_C1_CSI, _C1_STRINGS = "\x9b", "\x90\x98\x9d\x9e\x9f"
_ESCAPE_STRINGS = "PX]^_k"
"""DCS, SOS, OSC, PM, APC, and screen's title sequence."""
_PLAIN = re.compile(r"[^\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udcff]*")
_IN_STRING = re.compile(r"[^\x07\x0a-\x0c\x18\x1a\x1b\x80-\x9f\udc80-\udc9f]*")


class TerminalText:
    """Incremental parser of a terminal's output."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget an unfinished sequence or character."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._state = "text"

    def feed(self, data: bytes) -> str:
        """Return the text in the next bytes; a character or a sequence may begin in one piece and end in another."""
        text = self._decoder.decode(data)
        pieces: list[str] = []
        place = 0
        while place < len(text):
            if self._state in ("text", "string"):
                run = (_PLAIN if self._state == "text" else _IN_STRING).match(text, place)
                assert run is not None
                pieces.append(run[0] if self._state == "text" else "")
                place = run.end()
            if place < len(text):
                pieces.append(self._consume(_decode_control(text[place])))
                place += 1
        return "".join(pieces)

    def _consume(self, char: str) -> str:
        """Take a character: change the state, and return the text that it shows."""
        if char in _LINE_ENDS:
            self._state = "text"
            return "\n"
        if char == "\x1b":
            self._state = "escape"
        elif "\x80" <= char <= "\x9f":
            self._state = "csi" if char == _C1_CSI else "string" if char in _C1_STRINGS else "text"
        elif char in _CANCEL or (char == "\x07" and self._state == "string"):
            self._state = "text"
        elif char >= " " and char != "\x7f":
            return self._consume_printable(char)
        return ""

    def _consume_printable(self, char: str) -> str:
        state, self._state = self._state, "text"
        if state == "string" or (state in ("escape", "intermediate") and " " <= char <= "/"):
            self._state = "string" if state == "string" else "intermediate"
        elif (state == "csi" and " " <= char <= "?") or (state == "escape" and char == "["):
            self._state = "csi"
        elif state == "escape" and char in _ESCAPE_STRINGS:
            self._state = "string"
        return char if state == "text" or (char > "~" and self._state == "text") else ""


def resolve(text: str) -> str:
    """Return lines as they look in the end: carriage returns and backspaces lead to text being overwritten.

    Args:
        text (`str`): An output as `TerminalText` returned it.
    """
    return "\n".join(map(_resolve_line, text.split("\n")))


def _resolve_line(line: str) -> str:
    line = line.rstrip("\r").rpartition("\r")[2]
    if "\b" not in line:
        return line
    chars: list[str] = []
    for char in line.rstrip("\b"):
        if char != "\b":
            chars.append(char)
        elif chars:
            chars.pop()
    return "".join(chars)


def _decode_control(char: str) -> str:
    """Map a byte that is no UTF-8 to the C1 control character that it may be, else to a replacement character."""
    # Programs that don't know of UTF-8 send C1 controls as single bytes.
    if "\udc80" <= char <= "\udc9f":
        return chr(ord(char) - 0xDC00)
    return "\ufffd" if "\udca0" <= char <= "\udcff" else char
