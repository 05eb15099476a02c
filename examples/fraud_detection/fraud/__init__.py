"""The show of fraud detection: make transactions with frauds, and run, stop and measure the parts."""
