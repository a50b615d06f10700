"""A small client of etcd's v3 API (3.4 and later) for one event loop. docs/decisions.md says why it is our own."""
