"""The terminal environment (`env.TerminalEnv`): tasks in a persistent shell, in Harbor's layout.

Other packages use `env`, `task_folder` (reads and writes task sets) and `task_world` (a task's files, set up and
graded).
"""
