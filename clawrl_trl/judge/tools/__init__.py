"""Tool results as a judge reads them: whether a call worked, and whether a failure says anything about it.

The rest of the judge uses `results` (`ToolResult`, `score_results`) and what `wanted` tells of a request.
"""
