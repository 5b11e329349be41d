"""Policy versions that clients can ask for: their names, the one that serves, and the change to a new one."""
