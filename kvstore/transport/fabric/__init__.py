"""What the transports over NIXL and UCX share between client and node: libraries, registered memory, devices."""
