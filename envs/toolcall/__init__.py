"""The tool-call environment (`env.ToolCallEnv`): questions to answer with Python functions or MCP servers.

Other packages use `env`, `tasks`, `tools` (`FunctionTools`), `mcp_tools` (`McpServer`), `code_interpreter` and
`tools_config` (toolsets from a file).
"""
