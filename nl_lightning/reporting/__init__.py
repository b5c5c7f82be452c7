"""Results for people to look at: curves, tables, comparisons and the HTML page."""
