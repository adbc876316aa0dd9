"""What a step could cost at best on this machine, and how near the programs come."""
