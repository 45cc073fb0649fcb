"""Where tensors live, how they get there, and where the host waits for the device."""
