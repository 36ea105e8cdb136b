"""What a user relies on, on a real mount and with real processes."""
