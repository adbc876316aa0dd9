"""What a program costs besides step time: memory, compile time, bytes on disk, time to load."""
