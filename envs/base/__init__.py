"""Parts that every environment is made of.

Environments, also those of other packages, use `agent` (`AgentEnv` turns `begin`, `act` and `evaluate` into a TorchRL
`EnvBase`), `episode` (tasks, starts, effects of actions; without torch), `message` (an assistant's message as an
action), `actor` (a gateway's model as a TorchRL policy) and `excerpt` (long output, shortened).
"""
