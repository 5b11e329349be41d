"""Parts that every environment is made of.

Environments, also those of other packages, use `agent` (`AgentEnv` turns `begin`, `act` and `evaluate` into a TorchRL
`EnvBase`), `message` (an assistant's message as an action), `actor` (a gateway's model as a TorchRL policy) and
`excerpt` (long output, shortened).
"""
