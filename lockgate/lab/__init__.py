"""Show and measure: a running job never imports this package."""
