"""Many nodes, one cache: who is there, who holds what, where new blocks go."""
