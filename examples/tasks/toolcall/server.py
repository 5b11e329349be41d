"""A home and a shop as an MCP server: the tools of the tool-call tasks.

python server.py                 # over stdio
python server.py --port 8000     # over streamable HTTP, on the loopback address, path /mcp
"""

import argparse

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

PRICES = {"apple": 3, "pear": 4, "plum": 2, "lemon": 5, "bread": 6, "milk": 7}

server = MCPServer("home", log_level="ERROR")


@server.tool()
def light(value: int) -> str:
    """Set the light."""
    return f"light is {value}"


@server.tool()
def fan(value: int) -> str:
    """Set the fan."""
    return f"fan is {value}"


@server.tool()
def heat(value: int) -> str:
    """Set the heat."""
    return f"heat is {value}"


@server.tool()
def price(item: str) -> int:
    """Price of an item."""
    if item not in PRICES:
        raise ToolError(f"no {item} here; there are {', '.join(PRICES)}")
    return PRICES[item]


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, help="serve streamable HTTP here, instead of stdio")
    port = parser.parse_args().port
    if port is None:
        server.run()
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
