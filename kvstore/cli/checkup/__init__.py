"""What `kvstore doctor` looks at: the machine, and the node that runs on it."""
