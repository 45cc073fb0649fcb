"""What rows cannot say of a library: command lines, configuration files."""
