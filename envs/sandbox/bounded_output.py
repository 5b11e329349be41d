"""Output of a command, within a bound."""


class BoundedOutput:
    """The beginning and the end of a stream, within a bound.

    Args:
        max_bytes (`int`): Bytes to keep, half of them of the beginning.
    """

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._omitted = 0

    def add(self, data: bytes) -> None:
        """Append data; of what exceeds the bound, the middle goes."""
        space = self._half - len(self._head)
        self._head += data[:space]
        self._tail += data[space:]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            del self._tail[:surplus]
            self._omitted += surplus

    @property
    def is_truncated(self) -> bool:
        """True if some of the stream is missing."""
        return self._omitted > 0

    @property
    def data(self) -> bytes:
        """The bytes that were kept, with a line in place of those that were not."""
        gap = f"\n[... {self._omitted} bytes left out ...]\n".encode() if self._omitted else b""
        return bytes(self._head + gap + self._tail)

    @property
    def text(self) -> str:
        """`data` decoded as UTF-8."""
        return self.data.decode(errors="replace")
