"""server/telemetry."""
