"""Parts that every environment is made of.

`agent.AgentEnv` turns `begin`, `act` and `evaluate` into a TorchRL `EnvBase`; `message` reads an assistant's message
as an action; `actor` puts a gateway's model behind a TorchRL policy.
"""
