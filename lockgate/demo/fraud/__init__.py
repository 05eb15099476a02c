"""The show of fraud detection: transactions with frauds in them, and what runs, stops and measures its parts."""
