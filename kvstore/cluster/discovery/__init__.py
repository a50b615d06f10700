"""Ways to find the other nodes of a cell."""
