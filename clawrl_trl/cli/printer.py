"""Printing of a run's data on a terminal: never as markup, no control characters, and tables that fit.

All that the command prints of a run goes through here.
"""

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clawrl_trl.visible_text import make_visible


class Printer:
    """Prints a run's data to a person; to a pipe, tables become lines of tab-separated full values.

    Args:
        console (`Console`, *optional*): Where to. Default: standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, emoji=False)

    def print_line(self, text: str, style: str = "") -> None:
        """Print a text, wrapped to the terminal; its colour is all that `style` sets."""
        self._console.print(Text(make_visible(text), style=style), soft_wrap=not self._console.is_terminal)

    def print_rule(self, title: str) -> None:
        """Print a heading over the full width."""
        self._console.rule(Text(make_visible(title)))

    def print_indented(self, text: str, style: str = "") -> None:
        """Print a text two columns in."""
        if self._console.is_terminal:
            self._console.print(Padding(Text(make_visible(text), style=style), (0, 0, 0, 2)))
        else:
            self.print_line("\n".join(f"  {line}" for line in text.splitlines()), style)

    def print_table(
        self, columns: Sequence[str], rows: Sequence[Mapping[str, object]], full: Mapping[str, str]
    ) -> None:
        """Print a table: short values for a person, full ones to a pipe.

        Args:
            columns (`Sequence[str]`): Keys of the rows, in order; also the headings.
            rows (`Sequence[Mapping]`): Values as texts.
            full (`Mapping[str, str]`): For a column, the key of its full value.
        """
        if not self._console.is_terminal:
            # Programs read what is piped: a short id or a day would be of no use to them.
            keys = [full.get(column, column) for column in columns]
            for values in (keys, *([str(row[key]) for key in keys] for row in rows)):
                print("\t".join(make_visible(value).replace("\t", " ").replace("\n", " ") for value in values))
            return
        table = Table(pad_edge=False, box=None)
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            table.add_row(*(Text(make_visible(str(row[column])).replace("\n", " ")) for column in columns))
        self._console.print(table)
