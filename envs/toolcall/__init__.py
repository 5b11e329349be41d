"""The tool-call environment (`env.ToolCallEnv`): questions to answer with tools, Python functions or MCP servers."""
