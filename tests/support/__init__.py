"""What tests share, each thing once. A test imports it as `from support.records import send`."""
