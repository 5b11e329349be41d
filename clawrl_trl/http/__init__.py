"""HTTP servers with bounds, on connections (`server`), bodies (`body`) and the counts in a request (`limits`), and
server-sent events (`sse`).

Gateway, embedded engine and environment server use the bounds, whoever reads or writes a stream `sse`. It imports no
torch.
"""
