"""The terminal environment (`env.TerminalEnv`): tasks in a persistent shell, in Harbor's layout."""
