"""The half of a report on models that predict no classes: numbers, and times until an event."""
