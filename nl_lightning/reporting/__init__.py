"""What people look at: curves, tables, comparisons, the HTML page."""
