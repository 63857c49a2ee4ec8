"""The node: wiring of agents, admission of clients, the engine process."""
