"""HTTP servers with bounds: on connections (`server`), bodies (`body`) and the counts in a request (`limits`).

Gateway, embedded engine and environment server use these three modules. It imports no torch.
"""
