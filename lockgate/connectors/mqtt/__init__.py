"""MQTT: messages are kept in an inbox on disk before the broker may forget them."""
