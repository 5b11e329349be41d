"""HTTP routes of the gateway: one module for each group of endpoints, each with a `router`.

`gateway.app` includes the routers; nothing else uses this package.
"""
