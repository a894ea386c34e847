"""Publish and subscribe over MQTT, where the broker's memory is a log: nobody misses a message."""
