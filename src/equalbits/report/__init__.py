"""HTML report of any output folder, and the table and plot of a comparison."""
