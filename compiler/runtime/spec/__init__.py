"""What an executable is made of: programs, ports, steps, guards; verified, and as JSON."""
