"""HTTP routes of the gateway: one module for each group of endpoints, each with a `router`."""
