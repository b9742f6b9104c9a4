"""Work that arrives while a device is busy becomes its next batch: no timers."""
